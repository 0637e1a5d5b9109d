"""The ledger in PostgreSQL: the table to which a unit was written, and its contents.

White box: fewer versions are kept in the ledger.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from tests.postgres.sink.postgres_help import batch_of
from tests.postgres.sink.transactions.postgres_transaction_help import UNIT, place, words

from sluicegate import ConfigError, Outcome, send, transaction
from sluicegate.errors import NonDeterministicReplay, UnitRefused
from sluicegate.postgres import PostgresSink
from sluicegate.postgres.sink import ledger
from sluicegate.sinks import Counts, Unit

if TYPE_CHECKING:
    from sluicegate.batcher import LoopClock
    from sluicegate.testing import EmbeddedPostgres


async def attempt(
    sink: Any, rows: list[tuple[int, str]], unit: Unit = UNIT, **counted: Any
) -> dict[Any, int]:
    """One transaction with these rows; return their outcomes."""
    batch = batch_of(rows)
    async with transaction(sink, unit) as tx:
        assert await send(tx, batch) == {}
        tx.record(Counts(rows=len(rows), delivered=len(rows), **counted))
    return dict(batch.delivery.verdicts(range(len(rows))))


async def test_one_unit_is_committed_once_for_each_table(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock
) -> None:
    """Two writers of one application and version: neither is skipped because of the other."""
    async with place(embedded_postgres.dsn) as db, place(embedded_postgres.dsn) as other:
        same = PostgresSink(db.dsn, table=other.table, columns=("id", "word"), ledger=db.ledger)
        async with db.sink() as sink, same:
            assert await attempt(sink, words(2)) == {Outcome.DELIVERED: 2}
            assert await attempt(same, words(3)) == {Outcome.DELIVERED: 3}
            assert await attempt(sink, words(2)) == {Outcome.DUPLICATE: 2}
            assert await attempt(same, words(3)) == {Outcome.DUPLICATE: 3}
            assert await attempt(same, words(1, 9), replace(UNIT, version=8, parts=9)) == {
                Outcome.DELIVERED: 1
            }
            assert await attempt(sink, words(1, 9), replace(UNIT, version=8)) == {
                Outcome.DELIVERED: 1
            }  # parts are compared per table
        assert (await db.rows(), await other.rows()) == (
            words(2) + words(1, 9),
            words(3) + words(1, 9),
        )
        names = await db.con.fetch(
            f"SELECT target FROM {db.ledger} WHERE version = 7 AND target_oid = "
            "to_regclass(target) ORDER BY 1"
        )
        assert [row[0] for row in names] == sorted(
            [f'"public"."{db.table}"', f'"public"."{other.table}"']
        )


@pytest.mark.parametrize(
    ("chosen", "ends"), [("DELETE", Outcome.DELIVERED), ("UPDATE", Outcome.DUPLICATE)]
)
async def test_a_table_made_anew_is_not_skipped(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock, chosen: str, ends: Outcome
) -> None:
    """The ledger cannot know which rows the new table has; the statements in the message offer a
    choice.
    """
    async with place(embedded_postgres.dsn) as db, db.sink() as sink:
        await attempt(sink, words(2))
        await attempt(sink, words(1, 9), replace(UNIT, part=2))
        await db.con.execute(
            f"DROP TABLE {db.table}; CREATE TABLE {db.table} (id int PRIMARY KEY, word text)"
        )
        with pytest.raises(UnitRefused, match="dropped and recreated, or restored") as refused:
            await attempt(sink, words(2))
        assert await db.rows() == []
        statement = re.search(rf"{chosen} .*?;", str(refused.value))
        assert statement is not None
        await db.con.execute(statement[0])
        assert await attempt(sink, words(2)) == {ends: 2}
        assert await attempt(sink, words(1, 9), replace(UNIT, part=2)) == {ends: 1}
        assert await db.rows() == (words(2) + words(1, 9) if ends is Outcome.DELIVERED else [])


@pytest.mark.parametrize(
    ("chosen", "ends"), [("DELETE", Outcome.DELIVERED), ("UPDATE", Outcome.DUPLICATE)]
)
async def test_a_table_that_was_renamed_is_not_written_to_twice(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock, chosen: str, ends: Outcome
) -> None:
    """It has the unit's rows under another name; the statements in the message offer a choice."""
    async with place(embedded_postgres.dsn) as db:
        async with db.sink() as sink:
            await attempt(sink, words(2))
        await db.con.execute(f"ALTER TABLE {db.table} RENAME TO {db.table}_renamed")
        try:
            async with PostgresSink(
                db.dsn, table=f"{db.table}_renamed", columns=("id", "word"), ledger=db.ledger
            ) as renamed:
                for part in (1, 2):
                    with pytest.raises(
                        UnitRefused,
                        match=rf'committed to this table under the name "public"."{db.table}"',
                    ) as refused:
                        await attempt(renamed, words(2), replace(UNIT, part=part))
                assert await attempt(renamed, words(1, 5), replace(UNIT, version=8)) == {
                    Outcome.DELIVERED: 1
                }
                statement = re.search(rf"{chosen} .*?;", str(refused.value))
                assert statement is not None
                await db.con.execute(
                    f"{statement[0]} DELETE FROM {db.table}_renamed WHERE '{chosen}' = 'DELETE'"
                )
                assert await attempt(renamed, words(2)) == {ends: 2}
        finally:
            await db.con.execute(f"ALTER TABLE {db.table}_renamed RENAME TO {db.table}")
        assert await db.rows() == words(2) + (words(1, 5) if chosen == "UPDATE" else [])


async def test_the_ledger_is_made_beside_the_table(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock
) -> None:
    """It is not created in the first schema of a role's search path: otherwise another role that
    repeats the write would have its own ledger.
    """
    async with place(embedded_postgres.dsn) as db:
        own = f"{db.table}_own"
        await db.con.execute(f"CREATE SCHEMA {own}")
        try:
            async with db.sink(
                connect_options={"server_settings": {"search_path": f"{own}, public"}}
            ) as sink:
                assert await attempt(sink, words(2)) == {Outcome.DELIVERED: 2}
            async with db.sink() as sink:
                assert await attempt(sink, words(2)) == {Outcome.DUPLICATE: 2}
        finally:
            await db.con.execute(f"DROP SCHEMA {own} CASCADE")
        assert await db.rows() == words(2)


async def test_a_table_made_anew_in_the_midst_is_the_one_that_is_noted(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock
) -> None:
    """A transaction does not lock the table before its first row."""
    async with place(embedded_postgres.dsn) as db, db.sink() as sink:
        async with transaction(sink, UNIT) as tx:
            await db.con.execute(
                f"DROP TABLE {db.table}; CREATE TABLE {db.table} (id int PRIMARY KEY, word text)"
            )
            assert await send(tx, batch_of(words(2))) == {}
            tx.record(Counts(rows=2, delivered=2))
        assert await db.rows() == words(2)
        assert await attempt(sink, words(2)) == {Outcome.DUPLICATE: 2}


async def test_versions_are_kept_for_each_table(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If one table is ahead of the other, the versions that the other still needs are kept."""
    async with place(embedded_postgres.dsn) as db, place(embedded_postgres.dsn) as other:
        monkeypatch.setattr(ledger, "KEPT_VERSIONS", 2)
        slow = PostgresSink(db.dsn, table=other.table, columns=("id", "word"), ledger=db.ledger)
        async with db.sink() as sink, slow:
            await attempt(slow, words(1), replace(UNIT, version=1))
            for version in range(1, 6):
                await attempt(sink, words(1, version), replace(UNIT, version=version))
            assert await attempt(slow, words(1), replace(UNIT, version=1)) == {Outcome.DUPLICATE: 1}
            assert await attempt(slow, words(1, 1), replace(UNIT, version=2)) == {
                Outcome.DELIVERED: 1
            }
            with pytest.raises(UnitRefused, match="keeps 2 versions"):
                await attempt(sink, words(1, 1), replace(UNIT, version=1))
        assert await other.rows() == words(2)


async def test_keys_of_another_type_are_refused(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock
) -> None:
    """An int and a bigint of the same value have different hashes, so a part by one is not a part
    by the other.
    """
    async with place(embedded_postgres.dsn) as db, db.sink() as sink:
        await attempt(sink, words(1), replace(UNIT, types="id int"))
        for unit in (replace(UNIT, types="id bigint"), replace(UNIT, part=2, types="id bigint")):
            with pytest.raises(UnitRefused, match=r"id int\b.*id bigint"):
                await attempt(sink, words(2, 10), unit)
        with pytest.raises(UnitRefused, match=r"id int\b.*id bigint"):
            async with transaction(sink, replace(UNIT, version=8, types="id bigint")):
                await attempt(sink, words(1, 50), replace(UNIT, version=8, part=2, types="id int"))
        assert await attempt(sink, words(1), UNIT) == {
            Outcome.DUPLICATE: 1
        }  # it has no record, so nothing is compared
        assert await db.rows() == words(1) + words(1, 50)


async def test_as_many_other_rows_under_a_committed_name_are_an_error(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock, caplog: pytest.LogCaptureFixture
) -> None:
    """A hash of their contents is stored beside their count."""
    async with place(embedded_postgres.dsn) as db, db.sink() as sink:
        await attempt(sink, words(2), content=-(2**63), content_of="id int")
        assert await attempt(sink, words(2), content=-(2**63), content_of="id int") == {
            Outcome.DUPLICATE: 2
        }
        with pytest.raises(NonDeterministicReplay, match=r"app_id.*current_timestamp.*content="):
            await attempt(sink, words(2), content=2**63 - 1, content_of="id int")
        assert await attempt(sink, words(2)) == {Outcome.DUPLICATE: 2}
        assert not caplog.records
        assert await attempt(sink, words(2), content=1, content_of="id int, word string") == {
            Outcome.DUPLICATE: 2
        }
        assert "only the numbers of rows are compared" in caplog.text
        assert await db.entries("content_of, content") == [("id int", -(2**63))]


async def test_a_table_of_another_shape_is_left_as_it_is(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock
) -> None:
    async with place(embedded_postgres.dsn) as db, db.sink() as sink:
        await db.con.execute(f"CREATE TABLE {db.ledger} (application text, mine text)")
        with pytest.raises(ConfigError, match="another shape"):
            await attempt(sink, words(2))
        names = await db.con.fetch(
            "SELECT attname FROM pg_attribute WHERE attrelid = $1::text::regclass AND attnum > 0",
            db.ledger,
        )
        assert [row[0] for row in names] == ["application", "mine"]
        assert await db.rows() == []


@pytest.mark.parametrize(
    ("given", "unit", "seen"), [("off", UNIT, "on"), ("local", UNIT, "local"), ("off", None, "off")]
)
async def test_a_unit_is_on_disk_when_it_is_committed(
    embedded_postgres: EmbeddedPostgres,
    real_clock: LoopClock,
    given: str,
    unit: Unit | None,
    seen: str,
) -> None:
    """Its caller treats it as complete and never sends it again."""
    columns = "id int, how text DEFAULT current_setting('synchronous_commit')"
    async with place(embedded_postgres.dsn, columns) as db:
        async with db.sink(
            ["id"], connect_options={"server_settings": {"synchronous_commit": given}}
        ) as sink:
            async with transaction(sink, unit) as tx:
                assert await send(tx, batch_of([(1,)])) == {}
            assert await send(sink, batch_of([(2,)])) == {}
        assert await db.rows() == [(1, seen), (2, given)]
