"""The session's time zone, which Spark uses to cast between instants and local times.

1. `spark.sql.session.timeZone` is read on the driver. Each record batch carries it in its schema's
   metadata, where sinks read it.
2. Spark accepts offsets such as `UTC+2`, `+2:00` and `Z`, which Arrow and Python do not. They
   become `+02:00` and `UTC`, also in timestamp columns, since rows could not be built otherwise.
3. A task of a format gets the zone from the properties of its job, if the session sets one, or from
   a timestamp column.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyarrow import compute
from pyspark import TaskContext

from ..._core import checks
from ..._core.arrow import TIME_ZONE

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pyspark.sql import DataFrame

pc: Any = compute  # its functions are created at import, so type checkers do not see them

SETTING = "spark.sql.session.timeZone"
_OFFSET = re.compile(r"(?:UTC|GMT|UT)?([+-])(\d{1,2})(?::?(\d{1,2}))?")


def session_zone(df: DataFrame) -> str:
    """Return the session's zone in Arrow's spelling. Raises `ConfigError` if Arrow lacks it."""
    given = str(df.sparkSession.conf.get(SETTING))
    zone = spelt(given)
    if zone.startswith(("+", "-")):  # Spark has checked it; older versions of Arrow cannot
        return zone
    try:
        pc.local_timestamp(pa.array([0], pa.timestamp("us", zone)))
    except pa.ArrowInvalid as error:
        raise checks.bad(
            SETTING,
            given,
            "is a zone that Arrow does not know; set a region such as 'Europe/Berlin' or an offset",
        ) from error
    return zone


def spelt(zone: str) -> str:
    """Convert the zone to the spelling of Arrow and Python."""
    found = _OFFSET.fullmatch(zone)
    if found is not None:
        return f"{found[1]}{int(found[2]):02d}:{int(found[3] or 0):02d}"
    return "UTC" if zone in {"Z", "UT", "GMT0"} else zone


def in_zone(batches: Iterable[pa.RecordBatch], zone: str | None) -> Iterator[pa.RecordBatch]:
    """Add the zone to the record batches; default: that of the job, or of a column."""
    known = zone or _of_job()
    for batch in batches:
        found = known or next(
            (kind.tz for kind in batch.schema.types if pa.types.is_timestamp(kind) and kind.tz),
            None,
        )
        yield batch if found is None else _marked(_respelt(batch), spelt(found))


def _of_job() -> str | None:
    context = TaskContext.get()
    return None if context is None else context.getLocalProperty(SETTING)


def _marked(batch: pa.RecordBatch, zone: str) -> pa.RecordBatch:
    return batch.replace_schema_metadata(
        {**(batch.schema.metadata or {}), TIME_ZONE: zone.encode()}
    )


def _respelt(batch: pa.RecordBatch) -> pa.RecordBatch:
    kinds = [_kind(kind) for kind in batch.schema.types]
    if kinds == batch.schema.types:
        return batch
    columns = [column.cast(kind) for column, kind in zip(batch.columns, kinds, strict=True)]
    return pa.RecordBatch.from_arrays(columns, names=batch.schema.names)


def _kind(kind: Any) -> Any:
    if pa.types.is_list(kind):
        inner = _kind(kind.value_type)
        return kind if inner == kind.value_type else pa.list_(inner)
    if pa.types.is_timestamp(kind) and kind.tz and spelt(kind.tz) != kind.tz:
        return pa.timestamp(kind.unit, spelt(kind.tz))
    return kind
