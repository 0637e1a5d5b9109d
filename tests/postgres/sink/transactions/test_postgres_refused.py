"""A transaction that the server refuses ends at once with the required repair, without fault of an
item.

White box: sinks are opened and asked as the batcher does it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import asyncpg
import pytest
from tests.postgres.sink.postgres_help import batch_of, role
from tests.postgres.sink.transactions.postgres_transaction_help import UNIT, place, words

from sluicegate import (
    DeadLetter,
    PermanentError,
    RefusedError,
    Retry,
    Timeout,
    send,
    stack,
    transaction,
)
from sluicegate._core.logs import for_log
from sluicegate._core.opening import opened
from sluicegate.errors import TransactionLost
from sluicegate.sinks import MemorySink

if TYPE_CHECKING:
    from sluicegate.batcher import LoopClock
    from sluicegate.testing import EmbeddedPostgres

REFUSALS: dict[str, tuple[str, str, str]] = {
    "a right": (
        "REVOKE INSERT ON {table} FROM {role}",
        "GRANT INSERT ON {table} TO {role}",
        "grant INSERT on table",
    ),
    "a table": (
        "ALTER TABLE {table} RENAME TO {table}_aside",
        "ALTER TABLE {table}_aside RENAME TO {table}",
        "create table",
    ),
    "a column": (
        "ALTER TABLE {table} DROP COLUMN word",
        "ALTER TABLE {table} ADD COLUMN word text",
        'add column "word"',
    ),
}


@pytest.mark.parametrize("rows", [5, 500])
@pytest.mark.parametrize("what", list(REFUSALS))
async def test_a_refusal_ends_the_unit_with_its_repair(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock, what: str, rows: int
) -> None:
    """Nothing is retried inside, nothing is stored, no dead letter is written; after the repair the
    unit commits.
    """
    break_it, repair_it, repair = REFUSALS[what]
    async with place(embedded_postgres.dsn) as db, role(db) as writer:
        names = {"table": db.table, "role": writer.name}
        await db.con.execute(f"GRANT CREATE ON SCHEMA public TO {writer.name}")
        letters = MemorySink[Any]()
        async with opened(
            sink := stack(
                db.sink(dsn=writer.dsn), Timeout(5.0), Retry(attempts=50), DeadLetter(letters)
            )
        ):
            async with transaction(sink, UNIT) as tx:
                assert await send(tx, batch_of(words(5))) == {}
            await db.con.execute(break_it.format(**names))
            batch = batch_of(words(rows, 10))
            with pytest.raises(RefusedError, match=repair) as caught:
                async with transaction(sink) as tx:
                    errors = await send(tx, batch)
                    assert {type(error) for error in errors.values()} == {TransactionLost}
                    assert all(repair in for_log(error) for error in errors.values())
                    assert {
                        type(error) for error in (await send(tx, batch_of(words(5, 1000)))).values()
                    } == {TransactionLost}
            assert isinstance(caught.value.__cause__, TransactionLost)
            with pytest.raises(RefusedError, match=repair):
                async with transaction(sink) as tx:
                    for error in (await send(tx, batch)).values():
                        raise error
            tries = batch.delivery.tries(0)
            assert tries is not None
            assert tries.count == 2, "one in each transaction"
            await db.con.execute(repair_it.format(**names))
            async with transaction(sink) as tx:
                assert await send(tx, batch_of(words(rows, 10))) == {}
            assert letters.items == []
            assert await db.con.fetchval(f"SELECT count(*) FROM {db.table}") == rows + 5


async def test_a_ledger_without_rights_refuses_the_unit_by_its_name(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock
) -> None:
    async with place(embedded_postgres.dsn) as db, role(db) as writer:
        async with db.sink() as owner, transaction(owner, UNIT):
            pass
        async with db.sink(dsn=writer.dsn) as sink:
            with pytest.raises(
                RefusedError,
                match="grant the sink.s role SELECT, INSERT, UPDATE and DELETE on table "
                f'"{db.ledger}"',
            ):
                async with transaction(sink, UNIT):
                    pass


async def test_row_security_refuses_single_rows_of_a_transaction(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock
) -> None:
    async with place(embedded_postgres.dsn) as db, role(db) as writer:
        await db.con.execute(f"""
            ALTER TABLE {db.table} ENABLE ROW LEVEL SECURITY;
            CREATE POLICY own ON {db.table} USING (true) WITH CHECK (word <> 'not yours')
        """)
        async with db.sink(dsn=writer.dsn) as sink:
            async with transaction(sink) as tx:
                for start, size in ((0, 5), (100, 100)):
                    rows = [
                        (start + number, "not yours" if number == 3 else "good")
                        for number in range(size)
                    ]
                    errors = await send(tx, batch_of(rows))
                    assert {index: type(error) for index, error in errors.items()} == {
                        3: PermanentError
                    }
        assert len(await db.rows()) == 103


async def test_a_table_changed_between_two_transactions_is_written_with_its_new_types(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock
) -> None:
    """The cached plan of the first is invalid in the second, where asyncpg may not prepare it
    again.
    """
    async with (
        place(embedded_postgres.dsn) as db,
        db.sink(pool_size=1) as sink,
    ):
        async with transaction(sink) as tx:
            assert await send(tx, batch_of(words(5))) == {}
        await db.con.execute(
            f"ALTER TABLE {db.table} ALTER COLUMN word TYPE varchar(500), ALTER COLUMN id TYPE "
            "bigint"
        )
        async with transaction(sink) as tx:
            assert await send(tx, batch_of(words(5, 2**40))) == {}
            assert await send(tx, batch_of(words(5, 2**41))) == {}
        assert len(await db.rows()) == 15
        await db.con.execute(f"ALTER TABLE {db.table} ALTER COLUMN id TYPE numeric")
        async with transaction(sink) as tx:
            assert await send(tx, batch_of(words(100, 100))) == {}


async def test_a_lost_prepared_statement_is_made_again_within_a_transaction(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock
) -> None:
    async with place(embedded_postgres.dsn) as db, db.sink(pool_size=1) as sink:
        async with transaction(sink) as tx:
            assert await send(tx, batch_of(words(5))) == {}
            inner: Any = tx.within  # type: ignore[attr-defined]  # of PostgreSQL's
            await inner.connection.execute("DEALLOCATE ALL")
            assert await send(tx, batch_of(words(5, 10))) == {}
            await inner.connection.execute("DEALLOCATE ALL")
            errors = await send(tx, batch_of([(0, "there"), *words(5, 20)]))
            assert {index: type(error.__cause__) for index, error in errors.items()} == {
                0: asyncpg.UniqueViolationError
            }
        assert len(await db.rows()) == 15
