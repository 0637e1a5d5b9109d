"""Avro values with a real schema registry, in a pipeline on a real Spark."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark")

import pyarrow as pa
import pyarrow.parquet as pq

from sluicegate.kafka import Avro, SchemaRegistry
from sluicegate.spark import Pipeline, PipelineError
from sluicegate.spark.pipeline import Destination, Source, Step, Write

if TYPE_CHECKING:
    from pathlib import Path

    from sluicegate.testing import EmbeddedRegistry

FIELDS: list[dict[str, Any]] = [
    {"name": "id", "type": "long"},
    {
        "name": "amount",
        "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
    },
    {"name": "placed", "type": {"type": "long", "logicalType": "timestamp-micros"}},
    {"name": "raw", "type": "bytes"},
]
NOTE = {"name": "note", "type": ["null", "string"], "default": None}
PARSED = "id BIGINT, amount DECIMAL(9, 2), placed TIMESTAMP, raw STRING, note STRING"
PLACED = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def order(number: int, **more: Any) -> dict[str, Any]:
    amount = Decimal(number) / 4
    return {"id": number, "amount": amount, "placed": PLACED, "raw": b"\xff", **more}


def encoded(url: str, fields: list[dict[str, Any]], orders: list[dict[str, Any]]) -> list[Any]:
    """The values of a producer with its own version of the schema, in a script without a loop."""
    schema = {"type": "record", "name": "SparkOrder", "fields": fields}
    encode = Avro(SchemaRegistry(url), schema, auto_register=True).encoder("spark-orders")
    return [encode(each) for each in orders]


def pipeline(folder: Path, values: list[Any], url: str) -> Pipeline:
    file, out = str(folder / "values.parquet"), str(folder / "out.jsonl")
    pq.write_table(pa.table({"value": pa.array(values, pa.binary())}), file)
    sql = (
        "SELECT parsed.id, CAST(parsed.amount AS STRING) AS amount, parsed.note, "
        "date_format(parsed.placed, 'yyyy-MM-dd HH:mm') AS placed, hex(unbase64(parsed.raw)) AS raw, value "
        f"FROM (SELECT value, from_json(avro_to_json(value), '{PARSED}') AS parsed FROM records)"
    )
    return Pipeline(
        name="avro",
        registry=url,
        sources={"records": Source(format="parquet", path=file)},
        steps={
            "orders": Step(sql=sql),
            "rows": Step(sql="SELECT id, amount, note, placed, raw FROM orders"),
        },
        sinks={"out": Destination(kind="file", arguments={"path": out})},
        write=Write(view="rows", sink="out"),
    )


def rows(folder: Path) -> list[Any]:
    lines = [line for file in folder.glob("out*.jsonl") for line in file.read_text().splitlines()]
    return sorted(map(json.loads, lines), key=str)


def test_steps_read_each_record_by_the_schema_that_it_names(
    spark: Any, embedded_registry: EmbeddedRegistry, tmp_path: Path
) -> None:
    """Two versions of a schema in one topic, a tombstone, and a value that is no Avro."""
    url = embedded_registry.url
    values = encoded(url, FIELDS, [order(1)])
    values += encoded(url, [*FIELDS, NOTE], [order(2, note="new")])
    made = pipeline(tmp_path, [*values, None], url)
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    assert made.run(spark).delivered == 3
    expected: list[dict[str, Any]] = [
        {"id": 1, "amount": "0.25", "note": None, "placed": "2026-01-02 03:04", "raw": "FF"},
        {"id": 2, "amount": "0.50", "note": "new", "placed": "2026-01-02 03:04", "raw": "FF"},
        {"id": None, "amount": None, "note": None, "placed": None, "raw": None},
    ]
    assert rows(tmp_path) == sorted(expected, key=str)

    broken = pipeline(tmp_path, [*values, b"\0\0\0\0\1\xff", b"{}"], url)
    with pytest.raises(Exception, match="DecodeError"):
        broken.run(spark)
    tried = "SELECT count(*) AS bad FROM records WHERE value IS NOT NULL AND try_avro_to_json(value) IS NULL"
    counted = replace(broken, steps={"rows": Step(sql=tried)})
    assert counted.run(spark).delivered == 1
    assert {"bad": 2} in rows(tmp_path)


def test_a_registry_that_cannot_be_one_is_a_mistake(spark: Any, tmp_path: Path) -> None:
    made = replace(pipeline(tmp_path, [], "http://h"), registry="not a url")
    with pytest.raises(PipelineError, match=r"registry: .*url"):
        made.run(spark)
