"""Values that asyncpg would change inside other values: in arrays of a domain, in fields of a
composite, in bounds of user-defined ranges. Compared by the server's own SELECT.
"""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("asyncpg")
from asyncpg import Range
from tests.postgres.sink.postgres_help import database, written

from sluicegate import PermanentError

if TYPE_CHECKING:
    from sluicegate.batcher import LoopClock
    from sluicegate.testing import EmbeddedPostgres

DAY = dt.date(2026, 1, 2)
AT = dt.datetime(2026, 1, 2, 3, 4)
TYPES = """
    DROP SCHEMA IF EXISTS parts CASCADE; CREATE SCHEMA parts; SET search_path = parts;
    CREATE DOMAIN small AS int CHECK (VALUE < 100); CREATE DOMAIN smaller AS small;
    CREATE DOMAIN smalls AS smaller[]; CREATE DOMAIN price AS numeric; CREATE DOMAIN doc AS jsonb;
    CREATE TYPE pair AS (size smaller, days date[], word text);
    CREATE TYPE nested AS (name text, inner_pair pair); CREATE DOMAIN pairs AS pair;
    CREATE TYPE smallrange AS RANGE (subtype = smaller, multirange_type_name = smallmulti);
    CREATE TYPE words AS (a text, b text); RESET search_path
"""
BAD_PAIR: list[Any] = [
    (1.5, None, "a"),
    {"size": 2.5},
    (None, [DAY, AT], "b"),
    {"days": [[AT]], "word": None},
]
GOOD_PAIR: list[Any] = [(1.0, [DAY], "a"), {"days": [dt.datetime(2026, 1, 2)]}, (None, None, None)]
KINDS: dict[str, tuple[list[Any], list[Any], list[str | None]]] = {
    # type: values that would be changed, others, and how these are stored
    "small[]": ([[1.5], [[1], [2.5]]], [[2.0, None], []], ["{2,NULL}", "{}"]),
    "smalls": ([[1.5]], [[3], None], ["{3}", None]),
    "pair": (BAD_PAIR, GOOD_PAIR, ["(1,{2026-01-02},a)", "(,{2026-01-02},)", "(,,)"]),
    "pairs": ([(1.5, None, "a")], [(1, None, "a")], ["(1,,a)"]),
    "nested": (
        [("x", (1.5, None, "a")), {"inner_pair": (None, [AT], None)}],
        [("x", (1, None, "a")), ("y", None)],
        ['(x,"(1,,a)")', "(y,)"],
    ),
    "pair[]": ([[(1, None, "a"), (1.5, None, "b")]], [[(1, None, "a"), None]], ['{"(1,,a)",NULL}']),
    "smallrange": ([Range(1.5, 3), (1, 2.5)], [Range(1, 3), (None, 3)], ["[1,3)", "(,3]"]),
    "smallmulti": ([[Range(1.5, 3)], [[1, 2.5]]], [[Range(1, 3)]], ["{[1,3)}"]),
    "smallrange[]": ([[Range(1.5, 3)]], [[Range(1, 3), None]], ['{"[1,3)",NULL}']),
    "words": ([("a",), ("a", "b", "c"), "ab"], [("1.5", "b"), {"a": "c"}], ["(1.5,b)", "(c,)"]),
    "price[]": ([], [[0.1, 2]], ["{0.1,2}"]),
    "doc[]": ([], [[{"a": 1}]], ['{"{\\"a\\": 1}"}']),
}
WAYS: dict[str, dict[str, Any]] = {
    "parameters": {"statement": "values"},
    "COPY": {"statement": "copy"},
    "staging": {"statement": "copy", "on_conflict": "update"},
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    "is_sent_again",
    [False, pytest.param(True, marks=pytest.mark.long)],
    ids=["once", "again"],
)
async def test_parts_of_values_are_checked_by_their_own_types(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock, way: str, *, is_sent_again: bool
) -> None:
    async with database(embedded_postgres.dsn) as db:
        await db.con.execute(TYPES)
        for kind, (bad, good, stored) in KINDS.items():
            await db.con.execute(
                f"DROP TABLE {db.table}; CREATE TABLE {db.table} (id int PRIMARY KEY, word parts.{kind})"
            )
            rows = [*enumerate([*bad, *good])]
            async with db.sink(**WAYS[way]) as sink:
                errors = await written(sink, rows, range(len(rows)) if is_sent_again else ())
            found = await db.con.fetch(f"SELECT word::text FROM {db.table} ORDER BY id")
            assert [each[0] for each in found] == stored, kind
            assert [*errors] == [*range(len(bad))], kind
            for error in errors.values():
                assert isinstance(error, PermanentError)
                assert "column 'word' (parts." in str(error)


async def test_the_field_of_a_composite_is_named(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock
) -> None:
    async with database(embedded_postgres.dsn) as db:
        await db.con.execute(TYPES)
        await db.con.execute(f"ALTER TABLE {db.table} ALTER word TYPE parts.nested USING NULL")
        async with db.sink() as sink:
            errors = await written(sink, [(1, ("x", (1.5, None, "a")))])
    assert str(errors[0]) == (
        "column 'word' (parts.nested): field 'inner_pair': field 'size': 1.5 is not a whole "
        "number, but the column has whole numbers"
    )


@pytest.mark.parametrize("way", WAYS)
async def test_a_field_that_takes_times_by_now_has_them(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock, way: str
) -> None:
    """No row fails because of the type that the field had when the sink was opened."""
    async with database(embedded_postgres.dsn, "id int PRIMARY KEY, word int") as db:
        await db.con.execute(
            "DROP TYPE IF EXISTS altered CASCADE; CREATE TYPE altered AS (name text, at date);"
            f"ALTER TABLE {db.table} ALTER word TYPE altered USING NULL"
        )
        async with db.sink(**WAYS[way]) as sink:
            assert await written(sink, [(0, ("a", DAY))]) == {}
            await db.con.execute(
                "ALTER TYPE altered DROP ATTRIBUTE at; ALTER TYPE altered ADD ATTRIBUTE at timestamp"
            )
            assert await written(sink, [(1, ("b", AT))]) == {}
        found = await db.con.fetchval(f"SELECT (word).at FROM {db.table} WHERE id = 1")
    assert found == AT
