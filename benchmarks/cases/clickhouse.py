"""Rows encoded by `ClickHouseSink`, compared with clickhouse-connect's Native blocks."""

from __future__ import annotations

import asyncio
import contextlib
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from sluicegate import ArrowBatch, RowBatch, send

from ..destination import installed
from ..harness import NS_PER_ITEM, Case, CaseUnavailableError, Contender, Target, name_of, placed
from ..stopwatch import Clock, Stopwatch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from sluicegate import Batch

    from ..stopwatch import Took

ARROW, JSON = "ClickHouseSink, rows as ArrowStream", "ClickHouseSink, rows as JSONEachRow"
COLUMNS = "ClickHouseSink, columns as ArrowStream"
NATIVE = "clickhouse-connect, rows as Native"
SIZES = (100, 1_000, 10_000)
TYPES = {
    "id": "UInt64",
    "user": "String",
    "amount": "Float64",
    "action": "LowCardinality(String)",
    "ts": "DateTime64(3, 'UTC')",
    "flag": "Bool",
}
ZERO = datetime(2026, 1, 1, tzinfo=UTC)
Row = tuple[int, str, float, str, datetime, bool]


def rows_of(size: int) -> list[Row]:
    """Events."""
    return [
        (
            number,
            f"user-{number % 997}",
            number / 7,
            "click" if number % 3 else "view",
            ZERO + timedelta(seconds=number),
            number % 7 == 0,
        )
        for number in range(size)
    ]


def encoder(*, is_arrow: bool) -> Any:
    """Encode a batch like the sink."""
    from sluicegate.clickhouse.server import TableFacts, TableName
    from sluicegate.clickhouse.table import OpenClickHouseTable
    from sluicegate.clickhouse.values import parse_type

    columns = {name: parse_type(kind) for name, kind in TYPES.items()}
    facts = TableFacts(columns, tuple(columns), (26, 9), "26.9", frozenset(), [])
    table = OpenClickHouseTable(facts, TableName("events", None), None, None, is_arrow=is_arrow)

    def body(batch: Batch[Any]) -> int:
        records = table.records(batch)
        if records.errors:
            raise AssertionError(f"rows were refused: {records.errors}")
        return len(table.join(records.records))

    return body


def native() -> Any:
    """Build the body of clickhouse-connect's `insert` of rows."""
    from clickhouse_connect.datatypes.registry import get_from_name
    from clickhouse_connect.driver.insert import InsertContext
    from clickhouse_connect.driver.transform import NativeTransform

    kinds = [get_from_name(kind) for kind in TYPES.values()]

    def body(rows: Sequence[Row]) -> int:
        context = InsertContext("events", [*TYPES], kinds, rows)
        return sum(map(len, NativeTransform().build_insert(context)))

    return body


def columns_of(rows: Sequence[Row]) -> ArrowBatch:
    """Return the same rows as columns that need no cast."""
    import pyarrow as pa

    kinds = (
        *(pa.uint64(), pa.string(), pa.float64(), pa.string()),
        *(pa.timestamp("ms", "UTC"), pa.bool_()),
    )
    columns = zip(zip(*rows, strict=True), kinds, strict=True)
    arrays = [pa.array(values, kind) for values, kind in columns]
    return ArrowBatch(pa.record_batch(arrays, names=[*TYPES]))


def _turn(make: Any, given: Any, times: int) -> Took:
    watch = Stopwatch()
    for _ in range(times):
        length = make(given)
    took = watch.read()
    if length < len(given):
        raise AssertionError(f"{len(given)} rows made a body of {length} bytes")
    return took


@contextlib.contextmanager
def prepare(count: int) -> Iterator[Sequence[Contender]]:
    if not installed("pyarrow", "httpx", "clickhouse_connect"):
        raise CaseUnavailableError("pyarrow, httpx or clickhouse-connect is not installed")
    arrow, json, peer = encoder(is_arrow=True), encoder(is_arrow=False), native()
    found: list[Contender] = []
    for size in SIZES:
        if size > count:
            continue
        rows, times = rows_of(size), count // size
        ways = {
            ARROW: (arrow, RowBatch(rows)),
            JSON: (json, RowBatch(rows)),
            COLUMNS: (arrow, columns_of(rows)),
            NATIVE: (peer, rows),
        }
        found += [
            placed(line, size, partial(_turn, *way, times), ours=line != NATIVE, items=size * times)
            for line, way in ways.items()
        ]
    yield found


# -- into a table ----------------------------------------------------------------------------------


def _sink_turn(server: Any, fresh: Callable[[], Batch[Any]], times: int, **options: Any) -> Took:
    from sluicegate.clickhouse import ClickHouseSink

    async def turn() -> Took:
        sink = ClickHouseSink(server.url, table="events", deduplicate=False, **options)
        async with sink:
            watch = Stopwatch()
            for _ in range(times):
                if errors := await send(sink, fresh()):
                    raise AssertionError(f"a row was refused: {errors}")
            return watch.read()

    return _counted(server, len(fresh()) * times, lambda: asyncio.run(turn()))


def _client_turn(server: Any, rows: Sequence[Row], times: int) -> Took:
    from clickhouse_connect import get_client

    def turn() -> Took:
        client = get_client(host="127.0.0.1", port=server.port, compress=False)
        client.insert("events", rows[:1], column_names=[*TYPES])
        server.run("TRUNCATE TABLE events")
        watch = Stopwatch()
        for _ in range(times):
            client.insert("events", rows, column_names=[*TYPES])
        took = watch.read()
        client.close()
        return took

    return _counted(server, len(rows) * times, turn)


def _counted(server: Any, count: int, turn: Callable[[], Took]) -> Took:
    server.run("DROP TABLE IF EXISTS events")
    columns = ", ".join(f"{name} {kind}" for name, kind in TYPES.items())
    server.run(f"CREATE TABLE events ({columns}) ENGINE = MergeTree ORDER BY id")
    took = turn()
    found = int(server.run("SELECT count() FROM events"))
    if found != count:
        raise AssertionError(f"{found} of {count} rows arrived")
    return took


@contextlib.contextmanager
def prepare_engine(count: int) -> Iterator[Sequence[Contender]]:
    if not installed("pyarrow", "httpx", "clickhouse_connect"):
        raise CaseUnavailableError("pyarrow, httpx or clickhouse-connect is not installed")
    from tests.clickhouse.servers import EngineServer, running

    from sluicegate.testing import EmbeddedUnavailable

    with contextlib.ExitStack() as opened:
        try:
            server = opened.enter_context(running(EngineServer))
        except EmbeddedUnavailable as reason:
            raise CaseUnavailableError(str(reason)) from None
        found: list[Contender] = []
        for size in SIZES[1:]:
            if size > count:
                continue
            rows, times = rows_of(size), count // size
            of_rows = partial(RowBatch[Row], rows)
            of_columns = partial(ArrowBatch, columns_of(rows).record_batch)
            ways: dict[str, Callable[[], Took]] = {
                ARROW: partial(_sink_turn, server, of_rows, times),
                JSON: partial(_sink_turn, server, of_rows, times, format="json"),
                COLUMNS: partial(_sink_turn, server, of_columns, times),
                NATIVE: partial(_client_turn, server, rows, times),
            }
            found += [
                placed(line, size, way, ours=line != NATIVE, items=size * times)
                for line, way in ways.items()
            ]
        yield found


CASES = (
    Case(
        name="clickhouse",
        title="Bodies of INSERTs of rows of six columns",
        prepare=prepare,
        items=100_000,
        quick_items=1_000,
        along="rows in a batch",
        unit=NS_PER_ITEM,
        peers=(NATIVE,),
        by=Clock.PROCESSOR,
        turns=3,
        targets=(
            Target(name_of(ARROW, 1_000), name_of(NATIVE, 1_000), 1.0),
            Target(name_of(ARROW, 10_000), name_of(NATIVE, 10_000), 1.0),
            Target(name_of(COLUMNS, 10_000), name_of(NATIVE, 10_000), 10.0),
        ),
    ),
    Case(
        name="clickhouse-engine",
        title="Rows of six columns into a table of the embedded engine",
        prepare=prepare_engine,
        items=100_000,
        quick_items=1_000,
        along="rows in a batch",
        unit=NS_PER_ITEM,
        peers=(NATIVE,),
        targets=(Target(name_of(ARROW, 10_000), name_of(NATIVE, 10_000), 1.0),),
    ),
)
