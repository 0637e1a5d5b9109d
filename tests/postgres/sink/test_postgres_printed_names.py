"""Types are identified by the catalog, however a session prints their names: with
`quote_all_identifiers`, and where a type of the user has the name of a built-in type.

White box: the tables of letters and of state are prepared by the same check.
"""

from __future__ import annotations

import datetime as dt
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

pa = pytest.importorskip("pyarrow")
asyncpg = pytest.importorskip("asyncpg")
from tests.postgres.sink.postgres_help import batch_of, database  # noqa: E402

from sluicegate import ArrowBatch, send  # noqa: E402
from sluicegate.postgres.letters.store import prepare  # noqa: E402
from sluicegate.postgres.state.table import StateTable  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from sluicegate.batcher import LoopClock
    from sluicegate.testing import EmbeddedPostgres

AT = dt.datetime(2026, 1, 2, 3)
DAY = AT.date()


@asynccontextmanager
async def printed(db: Any, setting: str) -> AsyncGenerator[str]:
    """The DSN of a new role whose sessions have a setting, and a type of its own called `date`."""
    name = f"{db.table}_printer"
    await db.con.execute(
        f"CREATE ROLE {name} SUPERUSER LOGIN PASSWORD 'secret'; ALTER ROLE {name} SET {setting};"
        f"CREATE SCHEMA {name}; CREATE TYPE {name}.date AS ENUM ('today')"
    )
    try:
        there = db.dsn.partition("//")[2].partition("@")[0]
        yield db.dsn.replace(there, f"{name}:secret")
    finally:
        await db.con.execute(f"DROP OWNED BY {name} CASCADE; DROP ROLE {name}")


SETTINGS = ("quote_all_identifiers = on", 'search_path = "$user", public, pg_catalog')


WAYS: tuple[dict[str, Any], ...] = (
    {},
    {"statement": "copy"},
    {"copy_threshold": 1, "staging_threshold": 1, "on_conflict": "update"},
)


@pytest.mark.parametrize("setting", SETTINGS)
async def test_values_are_checked_and_encoded_by_the_types(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock, setting: str
) -> None:
    """A `datetime` is not cut to a date; JSON, floats and columns are encoded as ever."""
    shape = "id int PRIMARY KEY, day date, days date[], price numeric, word json, code char(3)"
    names = ("id", "day", "days", "price", "word", "code")
    good = (DAY, [DAY], 0.1, {"a": 1}, "abc")
    rows = [(0, *good), (1, AT, *good[1:]), (2, DAY, [AT], *good[2:]), (3, *good)]
    async with database(embedded_postgres.dsn, shape) as db, printed(db, setting) as dsn:
        for options in WAYS:
            async with db.sink(names, dsn=dsn, **options) as sink:
                errors = await send(sink, batch_of(rows))
            assert [*errors] == [1, 2]
            assert "column 'day' (date)" in str(errors[1])
            found = await db.con.fetch(
                f"SELECT day, days, price::text, word::text, code FROM {db.table}"
            )
            assert [tuple(row) for row in found] == [(DAY, [DAY], "0.1", '{"a":1}', "abc")] * 2
            await db.con.execute(f"DELETE FROM {db.table}")
        instants = pa.array([AT, dt.datetime(2026, 1, 2)], pa.timestamp("us"))
        batch = pa.record_batch({"id": pa.array([1, 2], pa.int32()), "day": instants})
        async with db.sink(("id", "day"), dsn=dsn) as sink:
            assert not sink.refused_columns(batch.schema.remove(1).append(DATE))
            assert sink.refused_columns(batch.schema.remove(1).append(WORD))
            assert [*await send(sink, ArrowBatch(batch))] == [0]


DATE = pa.field("day", pa.date32())
WORD = pa.field("day", pa.string())


async def test_a_type_that_is_called_like_a_built_in_one_is_another_type(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock
) -> None:
    async with database(embedded_postgres.dsn, "id int") as db, printed(db, SETTINGS[1]) as dsn:
        own = f"{db.table}_printer.date"
        await db.con.execute(f"ALTER TABLE {db.table} ADD word {own}, ADD words {own}[]")
        for size in (1, 200):
            async with db.sink(("id", "word", "words"), dsn=dsn) as sink:
                rows = [(number, "today", ["today"]) for number in range(size)]
                errors = await send(sink, batch_of([*rows, (size, DAY, None)]))
                assert errors.keys() == {size}
        assert await db.con.fetchval(f"SELECT count(*) FROM {db.table} WHERE word = 'today'") == 201


async def test_tables_of_letters_and_of_state_are_recognised(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock
) -> None:
    async with (
        database(embedded_postgres.dsn) as db,
        printed(db, SETTINGS[0]) as dsn,
    ):
        for is_new in (True, False):
            statement = await prepare(dsn, "printed_letters", None)
            assert (statement is not None) is is_new
        con = await asyncpg.connect(dsn)
        try:
            for _ in range(2):
                await StateTable(table="printed_state", schema=None, column="bytea").examine(con)
        finally:
            await con.close()
