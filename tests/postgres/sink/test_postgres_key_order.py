"""Rows that may conflict reach the server in the order of their key, by every statement, and leave
what the same rows leave one by one.
"""

from __future__ import annotations

import asyncio
import random
from contextlib import AsyncExitStack
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest

asyncpg = pytest.importorskip("asyncpg")
from tests.postgres.sink.postgres_help import database, written  # noqa: E402

from sluicegate import ArrowBatch, Batcher, Limits, RowBatch, send  # noqa: E402
from sluicegate.testing import embedded_postgres  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from sluicegate.batcher import LoopClock, Tally
    from sluicegate.postgres import PostgresSink
    from sluicegate.testing import EmbeddedPostgres

WAYS: dict[str, dict[str, Any]] = {
    "values": {"statement": "values"},
    "arrays": {"statement": "unnest"},
    "staging": {"statement": "copy"},
    "columns": {},
    "transaction": {},
}

ICU = {"text COLLATE other_order", "text COLLATE no_case"}
COLLATIONS = """CREATE COLLATION other_order (provider = icu, locale = 'en');
CREATE COLLATION no_case (provider = icu, locale = 'en-u-ks-level2', deterministic = false);
"""
TIMES = [
    datetime(2024, 5, 1, 12, tzinfo=UTC) + timedelta(microseconds=each * 300_000)
    for each in range(6)
]
WORDS = ["a", "B", "A", "b", "ä", "z", "rev-9", "Rev-10"]
FLOATS = [0.0, -0.0, float("nan"), 1.5, float("inf")]
NUMBERS = [Decimal(each) for each in ("1", "1.0", "1.04", "1.21", "NaN", "-3")]
TYPES: dict[str, Sequence[Any]] = {
    "int": [3, 1, 2, -1],
    "text": WORDS,
    'text COLLATE "C"': WORDS,
    "text COLLATE other_order": WORDS,
    "text COLLATE no_case": WORDS,
    "varchar(3)": ["abc", "abc ", "ab", "ABC"],
    "char(4)": ["a", "a ", "b", "A"],
    "mood": ["low", "ok", "high"],
    "float8": FLOATS,
    "real": FLOATS,
    "numeric": NUMBERS,
    "numeric(5,1)": NUMBERS,
    "timestamptz": [*TIMES, *(each.astimezone(timezone(timedelta(hours=5))) for each in TIMES)],
    "timestamptz(0)": TIMES,
    "timestamp(0)": [each.replace(tzinfo=None) for each in TIMES],
    "date": [date(2024, 1, each) for each in (2, 1, 3)],
    "uuid": [UUID(int=each << 64) for each in (2, 1, 300)],
    "bytea": [b"a", b"", b"ab", b"\xff"],
    "boolean": [True, False],
    "interval": [timedelta(days=1), timedelta(hours=24), timedelta(0)],
    "int[]": [[2, 1], [1], [10]],
}


@pytest.fixture(scope="module")
def icu() -> Iterator[EmbeddedPostgres]:
    """A server with the collations of ICU, from the system's packages; the embedded one has none."""
    programs = sorted(Path("/usr/lib/postgresql").glob("*/bin"))
    if not programs:
        pytest.skip("no PostgreSQL is installed")
    with embedded_postgres({"fsync": "off"}, binaries=programs[-1]) as server:
        asyncio.run(run(server.dsn, COLLATIONS))
        yield server


@pytest.fixture
def server(
    kind: str, request: pytest.FixtureRequest, embedded_postgres: EmbeddedPostgres
) -> EmbeddedPostgres:
    """The server for a type of column."""
    if kind in ICU:
        found: EmbeddedPostgres = request.getfixturevalue("icu")
        return found
    asyncio.run(run(embedded_postgres.dsn, MOOD))
    return embedded_postgres


MOOD = "DROP TYPE IF EXISTS mood CASCADE; CREATE TYPE mood AS ENUM ('low', 'ok', 'high')"


async def run(dsn: str, script: str) -> None:
    con = await asyncpg.connect(dsn)
    await con.execute(script)
    await con.close()


async def write(sink: PostgresSink, way: str, rows: Sequence[tuple[Any, ...]]) -> dict[int, Any]:
    """Write a batch; return the errors."""
    names = ("k", "v", "w")[: len(rows[0])]
    if way == "columns":
        import pyarrow as pa

        found = [*map(pa.array, zip(*rows, strict=True))]
        return await send(sink, ArrowBatch(pa.record_batch(found, names)))
    if way == "transaction":
        async with sink.transaction(None) as transaction:
            return await send(transaction, RowBatch(rows))
    return await written(sink, rows)


def quickly(kinds: Iterable[str], *quick: str) -> list[Any]:
    """All types; those besides `quick` run with the long tests."""
    return [
        pytest.param(kind, marks=() if kind in quick else (pytest.mark.long,)) for kind in kinds
    ]


@pytest.mark.parametrize("kind", quickly(TYPES, "varchar(3)", "mood", "numeric(5,1)"))
async def test_a_batch_leaves_what_its_rows_leave_one_by_one(
    server: EmbeddedPostgres, real_clock: LoopClock, kind: str
) -> None:
    """batcher/B38, by each statement, with the type as version and as key, and with a column that
    is not replaced.
    """
    shapes: dict[str, tuple[str, str | None, Callable[[int, Any], tuple[Any, ...]]]] = {
        "version": (f"k int PRIMARY KEY, v {kind}, w int", "v", lambda n, x: (n % 3, x, n)),
        "key": (f"k {kind} PRIMARY KEY, v int, w int", None, lambda n, x: (x, n, n)),
        "both": (f"k {kind} PRIMARY KEY, v int, w int", "v", lambda n, x: (x, n % 4, n)),
    }
    dice = random.Random(kind)
    for shape, (columns, version, row) in shapes.items():
        rows = [row(n, dice.choice(TYPES[kind])) for n in range(16)]
        options: dict[str, Any] = {
            "on_conflict": "update",
            "version_column": version,
            "update_columns": ("v",) if shape == "key" else None,
        }
        async with database(server.dsn, columns) as db:
            async with db.sink(("k", "v", "w"), **options) as sink:
                for each in rows:
                    assert await written(sink, [each]) == {}
            expected = [*map(repr, await db.rows("k, v, w"))]
            for way in WAYS:
                if kind in NO_WAY.get(way, ()):
                    continue
                await db.con.execute(f"TRUNCATE {db.table}")
                async with db.sink(("k", "v", "w"), **options, **WAYS[way]) as sink:
                    assert await write(sink, way, rows) == {}, (shape, way, rows)
                assert [*map(repr, await db.rows("k, v, w"))] == expected, (shape, way, rows)


NO_WAY = {"columns": {"interval", "int[]", "uuid", "numeric", "numeric(5,1)"}, "arrays": {"int[]"}}
"""Types whose values here have no form in Arrow, and types that `unnest` would split."""


KEYS: dict[str, Sequence[Any]] = {
    "int": [9, 10, 200],
    "text": ["B", "a", "ä"],
    "text COLLATE no_case": ["A", "b", "C"],
    "numeric": [Decimal(9), Decimal(10), Decimal(200)],
    "timestamptz": TIMES[:3],
}


@pytest.mark.parametrize("mode", ["update", "ignore"])
@pytest.mark.parametrize("kind", quickly(KEYS, "numeric"))
@pytest.mark.parametrize("way", [*WAYS, "with a bad row"])
async def test_writers_of_common_keys_in_opposite_orders_do_not_deadlock(
    server: EmbeddedPostgres, real_clock: LoopClock, way: str, kind: str, mode: str
) -> None:
    """Another session holds the middle key until both writers wait: each for it, or for the other
    one. If they had locked keys in the order of their batches, they would then wait for each other.
    """
    keys = KEYS[kind]
    if way == "with a bad row" and mode == "ignore":
        pytest.skip("sifting inserts new keys in the order of the batch")
    if mode == "ignore" and way == "returned":
        pytest.skip("existing rows return nothing")
    options: dict[str, Any] = {**WAYS.get(way, {}), "on_conflict": mode}
    shape = f"k {kind} PRIMARY KEY, v int CHECK (v >= 0)"
    async with database(server.dsn, shape) as db, AsyncExitStack() as stack:
        sinks = [
            await stack.enter_async_context(db.sink(("k", "v"), pool_size=1, **options))
            for _ in range(2)
        ]
        fill = f"INSERT INTO {db.table} VALUES ($1, 0)"
        if mode == "update":
            await db.con.executemany(fill, [(key,) for key in keys])
        holder = await stack.enter_async_context(database(server.dsn))
        held = holder.con.transaction()
        await held.start()
        if mode == "update":
            hold = f"SELECT FROM {db.table} WHERE k = $1 FOR UPDATE"
            await holder.con.execute(hold, keys[1])
        else:
            await holder.con.execute(fill, keys[1])
        async with asyncio.TaskGroup() as group:
            tasks = []
            for number, sink in enumerate(sinks, 1):
                rows = [(key, number) for key in (keys if number == 1 else keys[::-1])]
                if way == "with a bad row":
                    rows.append((keys[0], -1))
                tasks.append(group.create_task(write(sink, way, rows)))
                await until_waiting(db.con, number)
            await held.rollback()
        bad = [3] if way == "with a bad row" else []
        assert [[*each.result()] for each in tasks] == [bad, bad]
        assert {each[1] for each in await db.rows()} == {2 if mode == "update" else 1}


@pytest.mark.long
async def test_services_that_replace_the_same_rows_at_full_load_do_not_deadlock(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock
) -> None:
    """Each service has its own statement and its own order; no `Retry` repeats a failed write."""
    ways = ("values", "insert", "arrays", "staging")
    async with database(embedded_postgres.dsn, "k int PRIMARY KEY, v int") as db:

        async def tally_of(way: str) -> Tally:
            order, sink = random.Random(way), db.sink(("k", "v"), on_conflict="update", **WAYS[way])
            batcher = Batcher(sink, limits=Limits(max_items=500, workers=2))
            async with batcher:
                for turn in range(20):
                    await batcher.add_many([(key, turn) for key in order.sample(range(500), 500)])
            return batcher.tally()

        tallies = await asyncio.gather(*map(tally_of, ways))
        assert [(each.accepted, each.delivered) for each in tallies] == [(10_000, 10_000)] * 4
        assert len(await db.rows()) == 500


async def until_waiting(con: Any, sessions: int) -> None:
    """Return when this number of sessions wait for a lock on a row."""
    waiting = (
        "SELECT count(DISTINCT pid) FROM pg_locks WHERE NOT granted "
        "AND locktype IN ('transactionid', 'tuple', 'speculative token')"
    )
    while await con.fetchval(waiting) != sessions:
        pass


@pytest.mark.parametrize(
    ("default", "way"),
    [
        ("int GENERATED ALWAYS AS IDENTITY", "staging"),
        *(("serial", way) for way in WAYS),
    ],
)
async def test_numbers_of_a_sequence_are_in_the_order_of_the_batch(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock, way: str, default: str
) -> None:
    keys = [*range(40)]
    random.Random(1).shuffle(keys)
    async with database(embedded_postgres.dsn, f"k int UNIQUE, v int, nr {default}") as db:
        async with db.sink(("k", "v"), on_conflict="update", **WAYS[way]) as sink:
            assert await write(sink, way, [(key, 0) for key in keys]) == {}
        assert [each[0] for each in await db.rows("nr")] == keys
