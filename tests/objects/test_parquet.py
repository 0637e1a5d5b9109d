"""The files of `ParquetSink`: the given values, or errors of single rows."""

from __future__ import annotations

import datetime as dt
import io
import math
import pickle
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyarrow import parquet
from tests.objects.object_help import items_in, written

from sluicegate import ArrowBatch, ConfigError, PermanentError, RefusedError, send
from sluicegate.objects import ParquetSink

if TYPE_CHECKING:
    from tests.objects.object_help import Bucket, Folder

    from sluicegate.batcher import LoopClock

UTC = dt.UTC
NOON = dt.datetime(2026, 1, 31, 12, 0, 0, 5)


@pytest.mark.parametrize(
    ("kind", "kept", "refused"),
    [
        (pa.int64(), [1, None, 2**62, 2.0], [1.5, "1", 2**64, True]),
        (pa.uint8(), [255], [-1, 256]),
        (pa.float64(), [0.1, 3, math.inf], ["x", 2**60 + 1]),
        (pa.float32(), [0.1], ["0.1"]),
        (pa.string(), ["x", ""], [1, "\ud800"]),
        (pa.bool_(), [True], [1, "yes"]),
        (pa.binary(), [b"\xff"], [1]),
        (pa.decimal128(5, 2), [Decimal("1.25"), 3], [Decimal("1.255"), Decimal(10**6)]),
        (pa.timestamp("us"), [NOON], [NOON.replace(tzinfo=UTC), "2026", 5]),
        (pa.timestamp("us", "UTC"), [NOON.replace(tzinfo=UTC)], [NOON]),
        (pa.timestamp("s"), [NOON.replace(microsecond=0)], [NOON]),
        (pa.date32(), [NOON.date()], [NOON]),
        (pa.time32("s"), [dt.time(1, 2, 3)], [dt.time(1, 2, 3, 4)]),
        (pa.duration("s"), [dt.timedelta(seconds=1)], [dt.timedelta(microseconds=1)]),
        (pa.list_(pa.int64()), [[1, 2], []], [[1.5], [[1]], 7]),
        (
            pa.struct([("a", pa.int64()), ("b", pa.timestamp("s"))]),
            [{"a": 1}, {"a": None, "b": NOON.replace(microsecond=0)}],
            [{"a": 1, "c": 2}, {"a": 1.5}, {"b": NOON}],
        ),
        (pa.map_(pa.string(), pa.int64()), [{"x": 1}, {}], [{"x": 1.5}]),
        (pa.dictionary(pa.int32(), pa.string()), ["x"], [1]),
    ],
)
async def test_a_value_is_stored_as_it_is_or_refused(
    real_clock: LoopClock, folder: Folder, kind: Any, kept: list[Any], refused: list[Any]
) -> None:
    """Its neighbours are stored; a float may be rounded to its type."""
    values = [pair for each in refused for pair in (kept[0], each)] + kept
    async with ParquetSink(folder.url, schema={"v": kind}) as sink:
        errors = await written(sink, [(value,) for value in values])
    assert sorted(errors) == list(range(1, 2 * len(refused), 2))
    assert all(type(error) is PermanentError for error in errors.values())
    assert all("'v'" in str(error) for error in errors.values())
    found = [item["v"] for item in items_in(folder.objects())]
    wanted = [kept[0]] * len(refused) + kept
    if pa.types.is_floating(kind):
        assert found == pytest.approx(wanted)
    elif not pa.types.is_nested(kind):
        assert found == wanted
    assert len(found) == len(wanted)


async def test_rows_are_tuples_mappings_objects_or_made(
    real_clock: LoopClock, bucket: Bucket
) -> None:
    class Thing:
        id, word = 3, "c"

    schema = {"id": "int64", "word": "string"}
    items = [(1, "a"), {"id": 2, "word": "b", "more": 0}, Thing(), {"id": 4}, "no row"]
    async with ParquetSink(bucket.url, config=bucket.config, schema=schema) as sink:
        errors = await written(sink, items)
        assert sorted(errors) == [3, 4]
    async with ParquetSink(
        bucket.url, config=bucket.config, schema=schema, row=lambda item: (item, str(item))
    ) as sink:
        assert await written(sink, [5]) == {}
    found = sorted(items_in(bucket.objects()), key=lambda item: item["id"])
    assert [tuple(item.values()) for item in found] == [(1, "a"), (2, "b"), (3, "c"), (5, "5")]


async def test_a_column_that_must_have_a_value(real_clock: LoopClock, folder: Folder) -> None:
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False)])
    columns = ArrowBatch(pa.record_batch({"id": pa.array([3, None])}))
    async with ParquetSink(folder.url, schema=schema) as sink:
        assert sorted(await written(sink, [(1,), (None,), (2,)])) == [1]
        assert sorted(await send(sink, columns)) == [1]
    assert sorted(item["id"] for item in items_in(folder.objects())) == [1, 2, 3]


async def test_columns_are_written_without_rows(
    real_clock: LoopClock, folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also in partitions, whose columns exist only in folder names."""
    monkeypatch.delattr(ArrowBatch, "rows")
    days = pa.array([NOON.date(), None, NOON.date()], pa.date32())
    batch = ArrowBatch(pa.record_batch({"day": days, "id": [1, 2, 3], "x": ["a", None, "b"]}))
    async with ParquetSink(folder.url, schema=None, partition_by=["day"]) as sink:
        assert await send(sink, batch) == {}
    found = {
        path.partition("/")[0]: parquet.read_table(io.BytesIO(content)).to_pydict()
        for path, content in folder.objects().items()
    }
    assert found == {
        "day=2026-01-31": {"id": [1, 3], "x": ["a", "b"]},
        "day=__HIVE_DEFAULT_PARTITION__": {"id": [2], "x": [None]},
    }


async def test_a_partition_that_python_cannot_read_refuses_its_row_alone(
    real_clock: LoopClock, folder: Folder
) -> None:
    days = pa.array([b"a", b"\xff"], pa.binary()).view(pa.string())
    batch = ArrowBatch(pa.record_batch({"day": days, "id": [1, 2]}))
    async with ParquetSink(folder.url, schema=None, partition_by=["day"]) as sink:
        errors = await send(sink, batch)
    assert {index: type(error) for index, error in errors.items()} == {1: PermanentError}
    assert [path.partition("/")[0] for path in folder.objects()] == ["day=a"]


@pytest.mark.parametrize("given", [pa.string_view(), pa.large_string()])
async def test_texts_of_any_layout_fit(real_clock: LoopClock, folder: Folder, given: Any) -> None:
    """polars exports `string_view`."""
    columns = pa.record_batch({"word": pa.array(["a", None], given)})
    async with ParquetSink(folder.url, schema={"word": "string"}) as sink:
        assert await send(sink, ArrowBatch(columns)) == {}
    assert items_in(folder.objects()) == [{"word": "a"}, {"word": None}]


async def test_what_others_read(real_clock: LoopClock, folder: Folder) -> None:
    """pyarrow's datasets find the partitions and the rows."""
    from pyarrow import dataset

    async with ParquetSink(
        folder.url, schema={"id": "int64"}, partition_by={"half": lambda item: item["id"] // 5}
    ) as sink:
        assert await written(sink, [{"id": n} for n in range(10)]) == {}
    read = dataset.dataset(folder.path, format="parquet", partitioning="hive").to_table()
    assert sorted(read.to_pylist(), key=lambda row: row["id"]) == [
        {"id": n, "half": n // 5} for n in range(10)
    ]


@pytest.mark.parametrize(
    ("later", "why"),
    [
        ({"id": [1]}, "no column 'word'"),
        ({"id": [1], "word": ["x"], "more": [2]}, "'more'"),
        ({"id": ["x"], "word": ["x"]}, "'id'"),
        ({"id": [1.5], "word": ["x"]}, "'id'"),
        ({"id": [1], "word": pa.array([7]).dictionary_encode()}, "'word'"),
        ({"id": [2**40], "word": ["x"]}, "'id'"),
    ],
)
async def test_a_schema_that_drifts_is_told(
    real_clock: LoopClock, folder: Folder, later: dict[str, Any], why: str
) -> None:
    """Without a declared schema, that of the first batch applies; other batches continue."""
    first = pa.record_batch({"id": pa.array([1], pa.int32()), "word": ["x"]})
    async with ParquetSink(folder.url, schema=None) as sink:
        assert await send(sink, ArrowBatch(first)) == {}
        errors = await send(sink, ArrowBatch(pa.record_batch(later)))
        assert type(errors[0]) is PermanentError
        assert why in str(errors[0])
        assert await send(sink, ArrowBatch(first)) == {}
        wider = pa.record_batch({"word": ["y"], "id": pa.array([7], pa.int64())})
        assert await send(sink, ArrowBatch(wider)) == {}
    assert len(items_in(folder.objects())) == 3


async def test_rows_need_a_schema(real_clock: LoopClock, folder: Folder) -> None:
    async with ParquetSink(folder.url, schema=None) as sink:
        errors = await written(sink, [(1,)])
    assert type(errors[0]) is RefusedError
    assert "schema=" in errors[0].repair


async def test_options_of_the_file(real_clock: LoopClock, folder: Folder) -> None:
    sink = ParquetSink(
        folder.url,
        schema={"id": "int64"},
        compression="gzip",
        row_group_rows=4,
        writer_options={"use_dictionary": False},
    )
    async with sink:
        assert await written(sink, [(n,) for n in range(10)]) == {}
    ((path, content),) = folder.objects().items()
    assert path.endswith(".parquet")
    meta = parquet.ParquetFile(io.BytesIO(content)).metadata
    assert meta.num_row_groups == 3
    column = meta.row_group(0).column(0)
    assert column.compression == "GZIP"
    assert not column.has_dictionary_page


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        ({"schema": {}}, "schema"),
        ({"schema": "id"}, "schema"),
        ({"schema": {"id": "whole number"}}, r"schema\['id'\]"),
        ({"schema": None, "row": tuple}, "row"),
        ({"compression": "rar"}, "compression"),
        ({"row_group_rows": 0}, "row_group_rows"),
        ({"writer_options": {"compression": "gzip"}}, "writer_options"),
        ({"writer_options": {"no_such": 1}}, "writer_options"),
    ],
)
def test_bad_arguments_are_named(arguments: dict[str, Any], names: str) -> None:
    given: dict[str, Any] = {"schema": {"id": "int64"}, **arguments}
    with pytest.raises(ConfigError, match=names):
        ParquetSink("s3://bucket", **given)


def test_it_is_pickled() -> None:
    sink = pickle.loads(pickle.dumps(ParquetSink("s3://bucket/a", schema={"id": "int64"})))
    assert repr(sink) == "ParquetSink('s3://bucket/a')"
