"""Values that pyarrow would change, types that Parquet does not have, and batches that differ."""

from __future__ import annotations

import datetime as dt
import math
from decimal import Decimal
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

import pyarrow as pa
import pytest
from tests.objects.object_help import items_in, written

from sluicegate import ArrowBatch, ConfigError, PermanentError, RefusedError, send
from sluicegate.objects import ParquetSink

if TYPE_CHECKING:
    from tests.objects.object_help import Folder

    from sluicegate.batcher import LoopClock

LEVEL = pa.struct([pa.field("a", pa.int64(), nullable=False)])
LISTED = pa.list_(pa.field("item", pa.int64(), nullable=False))
NAMED = pa.map_(pa.string(), pa.field("value", pa.int64(), nullable=False))


async def refused(sink: ParquetSink, columns: dict[str, Any]) -> list[int]:
    """Write columns; return the rows that do not fit."""
    errors = await send(sink, ArrowBatch(pa.record_batch(columns)))
    assert all(type(error) is PermanentError for error in errors.values())
    return sorted(errors)


@pytest.mark.parametrize(
    ("kind", "values", "bad"),
    [
        (pa.float32(), [0.5, 1e300, -math.inf, None], [1]),
        (pa.float16(), [0.5, 70_000.0, math.inf], [1]),
        (pa.time64("us"), [dt.time(1), dt.time(1, tzinfo=dt.UTC), None], [1]),
        (LISTED, [[1], [1, None], None], [1]),
        (LEVEL, [{"a": 1}, {"a": None}, None], [1]),
        (NAMED, [{"x": 1}, {"x": None}, None], [1]),
        (pa.list_(LEVEL), [[{"a": 1}], [{"a": None}], [None]], [1]),
        (pa.list_(pa.string()), [["ab"], "ab", None], [1]),
        (pa.list_(pa.uint8()), [[1], b"ab", bytearray(b"ab")], [1, 2]),
        (pa.uint64(), [2**64 - 1, True, None, 1.5], [1, 3]),
        (pa.int64(), [1, Decimal("1.5"), Decimal(2)], [1]),
    ],
)
async def test_a_row_whose_value_would_change_fails_alone(
    real_clock: LoopClock, folder: Folder, kind: Any, values: list[Any], bad: list[int]
) -> None:
    """For example a float that would become infinite, a time with a zone, or a missing value in a
    struct that must be complete, for which pyarrow would refuse the whole file.
    """
    async with ParquetSink(folder.url, schema={"v": kind}) as sink:
        errors = await written(sink, [(value,) for value in values])
    assert sorted(errors) == bad
    assert all(type(error) is PermanentError for error in errors.values())
    found = [item["v"] for item in items_in(folder.objects())]
    assert len(found) == len(values) - len(bad)
    assert None in found or None not in values


@pytest.mark.parametrize(
    ("column", "kind", "bad"),
    [
        (pa.array([0.5, 1e300, math.inf, None]), pa.float32(), [1]),
        (pa.array([1, 70_000, None]), pa.float16(), [1]),
        (pa.array([Decimal(1), Decimal(10) ** 45], pa.decimal256(50, 0)), pa.float32(), [1]),
        (pa.array([0.25, 2.675, 2.67, None]), pa.decimal128(5, 2), [1]),
        (pa.array([0.25, 2.675]).dictionary_encode(), pa.decimal128(5, 2), [1]),
        (pa.array([[1], [1, None]], LISTED), LISTED, [1]),
        (pa.array([None, None], pa.null()), pa.int64(), []),
    ],
)
async def test_a_column_whose_values_would_change(
    real_clock: LoopClock, folder: Folder, column: Any, kind: Any, bad: list[int]
) -> None:
    """A column without any value has no type of its own, and fits any type."""
    async with ParquetSink(folder.url, schema={"v": kind}) as sink:
        assert await refused(sink, {"v": column}) == bad
    assert len(items_in(folder.objects())) == len(column) - len(bad)


async def test_a_time_in_the_hour_that_occurs_twice(real_clock: LoopClock, folder: Folder) -> None:
    """The two are different times, and `==` makes them equal only to themselves."""
    berlin = ZoneInfo("Europe/Berlin")
    times = [dt.datetime(2025, 10, 26, 2, 30, fold=fold, tzinfo=berlin) for fold in (0, 1)]
    async with ParquetSink(folder.url, schema={"at": pa.timestamp("s", "UTC")}) as sink:
        assert await written(sink, [(time,) for time in times]) == {}
    found = [item["at"] for item in items_in(folder.objects())]
    assert found == [time.astimezone(dt.UTC) for time in times]


NO_PARQUET = pa.month_day_nano_interval()


async def test_a_type_that_parquet_does_not_have_is_named_before_rows_are_given_up(
    real_clock: LoopClock, folder: Folder
) -> None:
    with pytest.raises(ConfigError, match=r"schema.*month_day_nano_interval"):
        ParquetSink(folder.url, schema={"v": NO_PARQUET})
    async with ParquetSink(folder.url, schema=None) as sink:
        batch = ArrowBatch(pa.record_batch({"v": pa.array([(1, 2, 3)], NO_PARQUET)}))
        errors = await send(sink, batch)
        assert type(errors[0]) is RefusedError
        assert "schema=" in errors[0].repair
        assert await refused(sink, {"v": [1]}) == []


async def test_options_that_do_not_allow_a_value_are_no_outage(
    real_clock: LoopClock, folder: Folder
) -> None:
    """So `Isolate` can find the row."""
    options = {"coerce_timestamps": "ms"}
    schema = {"at": pa.timestamp("us")}
    async with ParquetSink(folder.url, schema=schema, writer_options=options) as sink:
        errors = await written(sink, [(dt.datetime(2026, 1, 1, microsecond=1),)])
    assert type(errors[0]) is PermanentError
    assert "would lose data" in str(errors[0])


async def test_a_column_without_values_at_first_takes_the_type_of_its_first_values(
    real_clock: LoopClock, folder: Folder
) -> None:
    """No good row that comes later is given up."""
    async with ParquetSink(folder.url, schema=None) as sink:
        assert await refused(sink, {"id": [1], "v": pa.nulls(1)}) == []
        assert await refused(sink, {"id": [2], "v": ["text"]}) == []
        assert await refused(sink, {"id": [3], "v": pa.nulls(1)}) == []
        assert await refused(sink, {"id": [4], "v": [5]}) == [0]
    found = sorted(items_in(folder.objects()), key=lambda item: item["id"])
    assert found == [{"id": 1, "v": None}, {"id": 2, "v": "text"}, {"id": 3, "v": None}]


async def test_a_partition_that_hive_would_read_as_none(
    real_clock: LoopClock, folder: Folder
) -> None:
    async with ParquetSink(folder.url, schema={"n": "int64"}, partition_by=["k"]) as sink:
        errors = await written(
            sink, [{"k": "__HIVE_DEFAULT_PARTITION__", "n": 1}, {"k": None, "n": 2}]
        )
    assert [type(error) for error in errors.values()] == [PermanentError]
    assert items_in(folder.objects()) == [{"n": 2}]
