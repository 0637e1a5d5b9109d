"""`COPY` itself compares the table's types with those that the rows were encoded for.

White box: the checks of a column, without a server.
"""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest
from tests.postgres.sink.postgres_help import batch_of, column_of, database, proxied, role

from sluicegate import PermanentError, send
from sluicegate.postgres import PostgresSink
from sluicegate.postgres.sink.rows.values import are_kept, column_check

if TYPE_CHECKING:
    from sluicegate.batcher import LoopClock
    from sluicegate.testing import EmbeddedPostgres

NOW = dt.datetime(2026, 1, 2, tzinfo=dt.UTC)
KINDS: dict[str, Any] = {
    "smallint": 1,
    "varchar(9)": "a",
    "char(3)": "abc",
    '"char"': b"a",
    "timestamp(3) with time zone": NOW,
    "interval day to second(3)": dt.timedelta(1),
    "bit(3)": None,
    "integer[]": [[1], [2]],
    "point": (1, 2),
    "int4range": None,
    "inet": None,
    "xml": None,
    "shade": "dark",
    "amount": 5,
    "plot": (1, 2),
    "uuid": None,
}
"""Types whose values are sent unchanged, with one value each."""
TYPES = """
    DROP TYPE IF EXISTS shade, plot CASCADE; DROP DOMAIN IF EXISTS amount CASCADE;
    CREATE TYPE shade AS ENUM ('dark'); CREATE DOMAIN amount AS bigint CHECK (VALUE > 0);
    CREATE TYPE plot AS (x int, y int)
"""


async def test_types_of_every_kind_are_compared_without_a_statement(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock
) -> None:
    async with database(embedded_postgres.dsn) as db, proxied(db.dsn) as (proxy, through):
        await db.con.execute(TYPES)
        columns = ", ".join(f"v{number} {kind}" for number, kind in enumerate(KINDS))
        await db.con.execute(f'CREATE TABLE "{db.table} of ""kinds""" ({columns})')
        sink = PostgresSink(
            through,
            table=f'{db.table} of "kinds"',
            columns=[f"v{number}" for number in range(len(KINDS))],
        )
        async with sink:
            assert await send(sink, batch_of([tuple(KINDS.values())] * 60)) == {}
            proxy.statements.clear()
            assert await send(sink, batch_of([tuple(KINDS.values())] * 60)) == {}
    assert [each.split()[0] for each in proxy.statements] == ["COPY"]


async def test_a_role_that_may_only_insert_writes(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock
) -> None:
    async with database(embedded_postgres.dsn) as db, role(db) as writer:
        await db.con.execute(f"REVOKE ALL ON {db.table} FROM {writer.name}")
        await writer.grant("INSERT")
        async with db.sink(dsn=writer.dsn, statement="copy") as sink:
            assert await send(sink, batch_of((n, "a") for n in range(60))) == {}
        assert len(await db.rows()) == 60


@pytest.mark.parametrize(
    ("before", "value", "after", "stored"),
    [
        ("int", 5, "real", 5.0),
        ("real", 5.5, "int", 6),
        ("bigint", 5, "double precision", 5.0),
        ("date", NOW.date(), "int USING 1", None),
        ("text", "abc", "bytea USING NULL", None),
    ],
)
async def test_values_are_not_taken_for_others_of_the_same_width(
    embedded_postgres: EmbeddedPostgres,
    real_clock: LoopClock,
    before: str,
    value: Any,
    after: str,
    stored: Any,
) -> None:
    """The second batch encounters the new type, the third one uses it."""
    async with (
        database(embedded_postgres.dsn, f"id int, word {before}") as db,
        db.sink(statement="copy", pool_size=1) as sink,
    ):
        assert await send(sink, batch_of((n, value) for n in range(60))) == {}
        await db.con.execute(f"TRUNCATE {db.table}; ALTER TABLE {db.table} ALTER word TYPE {after}")
        for start in (60, 120):
            given = batch_of((n, value) for n in range(start, start + 60))
            errors = await send(sink, given)
            if stored is None or isinstance(value, float):
                assert {type(error) for error in errors.values()} == {PermanentError}
                assert len(errors) == 60
            else:
                assert errors == {}
        found = {row[1] for row in await db.rows()}
        assert found == (set() if stored is None or isinstance(value, float) else {stored})


async def test_fractions_fit_into_a_column_that_is_no_longer_whole(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock
) -> None:
    async with (
        database(embedded_postgres.dsn, "id int, word int") as db,
        db.sink(statement="copy") as sink,
    ):
        assert await send(sink, batch_of((n, 1) for n in range(60))) == {}
        await db.con.execute(f"ALTER TABLE {db.table} ALTER word TYPE numeric")
        assert await send(sink, batch_of((n, 1.5) for n in range(60))) == {}
        assert await db.con.fetchval(f"SELECT sum(word) FROM {db.table}") == 60 + 90


async def test_a_function_that_a_trigger_misses_is_no_change_of_types(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock
) -> None:
    async with database(embedded_postgres.dsn) as db, db.sink(statement="copy") as sink:
        await db.con.execute(
            f"CREATE FUNCTION {db.table}_f() RETURNS trigger LANGUAGE plpgsql AS "
            "$$BEGIN IF NEW.id = 7 THEN PERFORM missing(1); END IF; RETURN NEW; END$$; "
            f"CREATE TRIGGER t BEFORE INSERT ON {db.table} FOR EACH ROW "
            f"EXECUTE FUNCTION {db.table}_f()"
        )
        errors = await send(sink, batch_of((n, "a") for n in range(60)))
        assert errors.keys() == {7}
        assert len(await db.rows()) == 59


@pytest.mark.parametrize("value", [1.0, 1.5, float("nan"), "1", b"x", object(), 1j])
@pytest.mark.parametrize("others", [(), ("b", 0.5, "c")], ids=["few others", "many others"])
def test_only_whole_numbers_are_found_quickly(value: object, others: tuple[object, ...]) -> None:
    checks = {
        place: column_check(column_of(kind)) for place, kind in ((0, "integer"), (2, "bigint"))
    }
    kinds = {place: check for place, check in checks.items() if check is not None}
    rows = [(None, "a", 2**70, *others), (True, None, -3, *others), (0, "", None, *others)]
    assert are_kept(rows, kinds)
    assert not are_kept([*rows, (1, "a", value, *others)], kinds)
    assert not are_kept([*rows * 400, (Decimal(1), "a", 1, *others)], kinds)
