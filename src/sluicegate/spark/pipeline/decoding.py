"""Values of Kafka, decoded: JSON, Avro with a schema registry, and Debezium's events in both.

1. The view of the source has a struct in place of the bytes. Its last field is NULL, or tells why
   a value cannot be decoded, where it is, and its bytes; then the other fields are NULL.
2. `SELECT value.*` passes that field on. A written row that has it fails with the reason, inside
   the stack (`refusal`).
3. A pipeline without any use of the field is refused: it would write rows of NULL.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812  # its usual name
from pyspark.sql.types import StringType, StructField, StructType

from ..avro import decoded_avro
from ..debezium import columns_of, event_type, payload_of, present_in, values_of
from .declaration import Mistake
from .refusal import UNDECODABLE

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pyspark.sql import DataFrame

    from .declaration import Declared, Source

_TEXT, _FOUND, _REASON = "sluicegate_text", "sluicegate_found", "sluicegate_reason"
_CORRUPT = StructField("sluicegate_corrupt", StringType())


def decode_values(df: DataFrame, source: Source, registry: str | None) -> DataFrame:
    """Decode the values of a source of Kafka that declares them. Lazy.

    Each stage is a column, which Spark computes once, however often the next one uses it.
    """
    value, row = F.col("value"), columns_of(df, source.schema or "")
    if source.debezium:
        df = df.where(value.isNotNull())  # tombstones follow deletions
    if source.value == "avro":
        text = decoded_avro(value, registry or "")
    else:
        text = F.struct(value.cast("string").alias("json"), F.lit(None).alias("reason"))
    df = df.withColumn(_TEXT, text)
    text, found = F.col(_TEXT).json, F.col(_FOUND)
    kind, fields = row, [found[name].alias(name) for name in row.names]
    if source.debezium:
        text, kind = payload_of(text), event_type(row)
        fields = [
            found.op.alias("op"),
            *values_of(found, row),
            present_in(text, row).alias("present"),
        ]
    options = {"columnNameOfCorruptRecord": _CORRUPT.name}
    df = df.withColumn(_FOUND, F.from_json(text, StructType([*kind.fields, _CORRUPT]), options))
    is_bad = found.isNull() | found[_CORRUPT.name].isNotNull()
    why = F.when(F.get_json_object(text, "$").isNull(), "it is no JSON").otherwise(
        "it does not fit the schema"
    )
    reason = F.coalesce(F.col(_TEXT).reason, F.when(is_bad, why))
    if source.debezium:
        reason = F.coalesce(reason, F.when(found.op.isNull(), "it is no change event"))
    df = df.withColumn(_REASON, F.when(value.isNotNull(), reason))
    reason = F.col(_REASON)
    where = F.struct(reason.alias("reason"), "topic", "partition", "offset", value)
    undecodable = F.when(reason.isNotNull(), F.to_json(where)).alias(UNDECODABLE)
    names = ["op", *row.names, "present"] if source.debezium else row.names
    decoded = F.struct(
        *(
            F.when(reason.isNull(), each).alias(name)
            for each, name in zip(fields, names, strict=True)
        ),
        undecodable,
    )
    made = df.withColumn("value", F.when(value.isNotNull(), decoded))
    return made.drop(_TEXT, _FOUND, _REASON)


def unused_reasons(pipeline: Declared, made: Mapping[str, DataFrame]) -> Iterator[Mistake]:
    """Find the sources whose undecodable values would be written as NULL."""
    if any(UNDECODABLE in made[write.view].columns for write in pipeline.writes.values()) or any(
        re.search(rf"\b{UNDECODABLE}\b", step.sql, re.IGNORECASE)
        for step in pipeline.steps.values()
    ):
        return
    for name, source in pipeline.sources.items():
        if source.value is not None:
            yield Mistake(
                ("sources", name, "value"),
                "values that cannot be decoded would be written as NULL: select value.*, or also "
                f"value.{UNDECODABLE}, so that they fail with the reason, or leave them out, WHERE "
                f"value.{UNDECODABLE} IS NULL",
            )
