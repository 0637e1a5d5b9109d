"""The statement depends on the number of rows; in any case a batch is one transaction.

White box: sinks with a forced statement.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import asyncpg
import pytest
from tests.postgres.sink.postgres_help import batch_of, database, outcomes, proxied, written

from sluicegate import Batcher, ConfigError, Limits, Outcome, send
from sluicegate.postgres import PostgresAccess, PostgresSink

if TYPE_CHECKING:
    from sluicegate.batcher import LoopClock
    from sluicegate.testing import EmbeddedPostgres

STATEMENTS = ("values", "unnest", "copy")


def to_words(dsn: str, **options: Any) -> PostgresSink:
    return PostgresSink(dsn, table="words", columns=("id", "word"), **options)


def words(count: int) -> list[tuple[int, str]]:
    return [(number, "x") for number in range(count)]


def kinds_of(statements: list[str]) -> list[str]:
    """The kind of each statement of the sink, except asyncpg's own queries for types."""
    found: list[str] = []
    for text in statements:
        word = text.partition(" ")[0].lower()
        if word == "insert":
            values = "values" if "), (" in text else "insert"
            word = "unnest" if "unnest(" in text else values if "VALUES" in text else "merge"
        if word in {"values", "insert", "unnest", "copy", "merge"}:
            found.append(word)
    return found


@pytest.mark.parametrize("mode", ["error", "ignore", "update"])
@pytest.mark.parametrize("statement", STATEMENTS)
async def test_each_statement_writes_a_batch_of_any_size(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock, mode: str, statement: str
) -> None:
    """B-T24, B-T25, batcher/B37, batcher/B39."""
    async with database(embedded_postgres.dsn) as db, proxied(db.dsn) as (proxy, through):
        async with db.sink(dsn=through, on_conflict=mode, statement=statement) as sink:
            for size in (1, 80):
                await db.con.execute(f"TRUNCATE {db.table}")
                proxy.statements.clear()
                assert await written(sink, words(size)) == {}
                assert await db.rows() == words(size)
                staged = ["copy"] if mode == "error" else ["copy", "merge"]
                expected = {
                    "values": ["insert" if size == 1 else "values"],
                    "unnest": ["unnest"],
                    "copy": staged,
                }
                assert kinds_of(proxy.statements) == expected[statement], size


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("error", ["values", "copy", "copy"]),
        ("ignore", ["values", "unnest", "copy"]),
        ("update", ["values", "unnest", "copy"]),
    ],
)
async def test_by_default_the_number_of_rows_decides(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock, mode: str, expected: list[str]
) -> None:
    """B-T25, batcher/B39."""
    async with database(embedded_postgres.dsn) as db, proxied(db.dsn) as (proxy, through):
        async with db.sink(
            dsn=through, on_conflict=mode, copy_threshold=10, staging_threshold=40
        ) as sink:
            seen: list[str] = []
            for size in (9, 10, 40):
                await db.con.execute(f"TRUNCATE {db.table}")
                proxy.statements.clear()
                assert await written(sink, words(size)) == {}
                seen.append(kinds_of(proxy.statements)[0])
            assert seen == expected


@pytest.mark.parametrize("mode", ["error", "ignore", "update"])
@pytest.mark.parametrize("statement", STATEMENTS)
async def test_a_batch_of_several_statements_is_one_transaction(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock, mode: str, statement: str
) -> None:
    """B-T24, batcher/B37: the server fails the batch near its end, after most of it has run; none
    of it remains.
    """
    async with database(embedded_postgres.dsn) as db, proxied(db.dsn) as (proxy, through):
        await db.con.execute(f"""
            CREATE OR REPLACE FUNCTION full_disk() RETURNS trigger LANGUAGE plpgsql AS
            $$ BEGIN IF NEW.id = 390 THEN RAISE EXCEPTION 'no room' USING ERRCODE = '53100'; END IF; RETURN NEW; END $$;
            CREATE TRIGGER room BEFORE INSERT ON {db.table} FOR EACH ROW EXECUTE FUNCTION full_disk()
        """)
        long = "x" * 2000  # so that one by one they need many packets
        async with db.sink(dsn=through, on_conflict=mode, statement=statement) as sink:
            proxy.statements.clear()
            errors = await written(sink, [(number, long) for number in range(400)])
            assert {type(error.__cause__) for error in errors.values()} == {asyncpg.DiskFullError}
            assert len(errors) == 400
            assert await db.rows() == []
            await db.con.execute(f"DROP TRIGGER room ON {db.table}")
            assert await written(sink, [(number, long) for number in range(400)]) == {}
            assert len(await db.rows()) == 400


@pytest.mark.parametrize("statement", STATEMENTS)
async def test_the_same_batch_twice_and_bad_rows_whatever_was_asked_for(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock, statement: str
) -> None:
    """B-T24, B-T25, batcher/B38, batcher/4b.5."""
    async with (
        database(embedded_postgres.dsn) as db,
        db.sink(on_conflict="ignore", statement=statement) as sink,
    ):
        for _ in range(2):
            batch = batch_of([*words(60), (60, "\0"), (61, "x")])
            assert list(await send(sink, batch)) == [60]
            assert outcomes(batch).count(Outcome.DELIVERED) == 61
        assert await db.rows() == [*words(60), (61, "x")]


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ({"copy_threshold": 0}, "copy_threshold"),
        ({"staging_threshold": -1}, "staging_threshold"),
    ],
)
def test_what_cannot_be_is_refused_at_construction(arguments: dict[str, Any], name: str) -> None:
    with pytest.raises(ConfigError, match=f"^{name}="):
        to_words("postgresql://there", **arguments)


def test_more_workers_than_connections_are_refused() -> None:
    """B-T46, batcher/B39: the pool is refused before anything is started."""
    with pytest.raises(ConfigError, match="workers=10: the sink takes at most 9"):
        Batcher(to_words("postgresql://there", pool_size=9), limits=Limits(workers=10))
    Batcher(to_words("postgresql://there", pool_size=10), limits=Limits(workers=10))


async def test_a_pool_smaller_than_was_said_is_refused(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock
) -> None:
    """B-T46: the size of a user's pool is known when it is opened."""
    made: list[Any] = []

    def pool() -> Any:
        made.append(asyncpg.create_pool(embedded_postgres.dsn, min_size=0, max_size=4))
        return made[-1]

    async with database(embedded_postgres.dsn) as db:
        with pytest.raises(ConfigError, match=r"pool_size=5: .* 4 connections"):
            async with PostgresSink(
                PostgresAccess(pool=pool), table=db.table, columns=("id", "word"), pool_size=5
            ):
                pass
        assert made[0].is_closing()
        async with PostgresSink(
            PostgresAccess(pool=pool), table=db.table, columns=("id", "word"), pool_size=3
        ) as sink:
            assert await written(sink, words(3)) == {}
