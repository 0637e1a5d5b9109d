"""Faults of transactions in PostgreSQL: broken connections, lost responses, cancellation, locks.

White box: stacks are opened as a batcher does it.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import tenacity
from tests.postgres.sink.postgres_help import batch_of, proxied
from tests.postgres.sink.transactions.postgres_transaction_help import UNIT, Place, place, words

from sluicegate import (
    DeadLetter,
    Observer,
    PermanentError,
    Retry,
    UnavailableError,
    UnknownOutcomeError,
    send,
    stack,
    transaction,
)
from sluicegate._core.opening import opened
from sluicegate.errors import TransactionLost
from sluicegate.sinks import MemorySink
from sluicegate.telemetry import Observed

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sluicegate import Batch, Sink
    from sluicegate.batcher import LoopClock
    from sluicegate.sinks import Unit
    from sluicegate.testing import EmbeddedPostgres


def classes(errors: Mapping[int, BaseException]) -> set[type[BaseException]]:
    return {type(error) for error in errors.values()}


async def end_session_of(db: Place, ledger: str) -> None:
    """Terminate the backend of a transaction with this ledger."""
    found = (
        "SELECT pg_terminate_backend(pid, 5000) FROM pg_locks WHERE relation = "
        "$1::regclass AND pid <> pg_backend_pid()"
    )
    assert await db.con.fetchval(found, ledger)


@pytest.mark.parametrize("rows", [5, 500])
async def test_a_killed_connection_takes_everything_with_it(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock, rows: int
) -> None:
    """P-T16: earlier writes are lost, too; each later write and the commit report it; nothing is
    retried inside.
    """
    async with (
        place(embedded_postgres.dsn) as db,
        opened(
            sink := stack(db.sink(pool_size=1), Retry(attempts=50), DeadLetter(MemorySink[Any]()))
        ),
    ):
        with pytest.raises(TransactionLost, match="nothing of it was applied"):
            async with transaction(sink, UNIT) as tx:
                assert await send(tx, batch_of(words(5))) == {}
                await end_session_of(db, db.ledger)
                batch = batch_of(words(rows, 10))
                assert classes(await send(tx, batch)) == {TransactionLost}
                assert classes(await send(tx, batch_of(words(5, 1000)))) == {TransactionLost}
                tries = batch.delivery.tries(0)
                assert tries is not None
                assert tries.count == 1
        assert await db.rows() == []
        async with transaction(sink, UNIT) as tx:
            assert tx.committed is None
            assert await send(tx, batch_of(words(5))) == {}
        assert await db.rows() == words(5)


async def test_a_connection_that_breaks_before_the_commit_applies_nothing(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock
) -> None:
    async with place(embedded_postgres.dsn) as db, db.sink() as sink:
        with pytest.raises(TransactionLost):
            async with transaction(sink, UNIT) as tx:
                assert await send(tx, batch_of(words(5))) == {}
                await end_session_of(db, db.ledger)
        assert await db.rows() == []
        assert await db.entries() == []


async def test_a_lost_answer_to_the_commit_is_found_in_the_ledger(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock
) -> None:
    """It was applied: the block ends without an error. Without a unit the outcome cannot be
    determined.
    """
    async with (
        place(embedded_postgres.dsn) as db,
        proxied(db.dsn) as (proxy, through),
        db.sink(dsn=through, pool_size=1) as sink,
    ):
        proxy.cut_answer = "COMMIT"
        async with transaction(sink, UNIT) as tx:
            assert await send(tx, batch_of(words(5))) == {}
        assert proxy.cuts == 1
        assert tx.committed is not None
        assert await db.rows() == words(5)
        proxy.cut_answer = "COMMIT"
        with pytest.raises(UnknownOutcomeError, match="without a unit"):
            async with transaction(sink) as tx:
                assert await send(tx, batch_of(words(5, 10))) == {}
        assert tx.committed is None


async def test_a_commit_that_never_arrived_is_found_in_the_ledger(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock
) -> None:
    async with (
        place(embedded_postgres.dsn) as db,
        proxied(db.dsn) as (proxy, through),
        db.sink(dsn=through) as sink,
    ):
        with pytest.raises(TransactionLost, match="according to the database"):
            async with transaction(sink, UNIT) as tx:
                assert await send(tx, batch_of(words(5))) == {}
                proxy.cut_request = lambda kind, body: kind == b"Q" and body.startswith(b"COMMIT")
        assert await db.rows() == []
        async with transaction(sink, UNIT) as tx:
            assert tx.committed is None


async def test_where_the_ledger_does_not_answer_either_nobody_knows(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock
) -> None:
    async with (
        place(embedded_postgres.dsn) as db,
        proxied(db.dsn) as (proxy, through),
        db.sink(dsn=through) as sink,
    ):

        def cut(kind: bytes, body: bytes) -> bool:
            if kind == b"Q" and body.startswith(b"COMMIT"):
                proxy.upstream = ("127.0.0.1", 9)
                return True
            return False

        with pytest.raises(UnknownOutcomeError, match="the next attempt will look it up"):
            async with transaction(sink, UNIT) as tx:
                assert await send(tx, batch_of(words(5))) == {}
                proxy.cut_request = cut
        with pytest.raises(UnavailableError):
            async with transaction(sink, UNIT):
                pass


async def test_cancelled_it_rolls_back(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock
) -> None:
    """During a write that waits for a lock; the connection can be used afterwards."""
    async with place(embedded_postgres.dsn) as db, db.sink(pool_size=1) as sink:
        begun = asyncio.Event()

        async def attempt() -> None:
            async with transaction(sink, UNIT) as tx:
                assert await send(tx, batch_of(words(5))) == {}
                begun.set()
                await send(tx, batch_of(words(100, 10)))

        await db.con.execute(f"BEGIN; INSERT INTO {db.table} VALUES (50, 'in the way')")
        task = asyncio.create_task(attempt())
        await begun.wait()
        for _ in range(20):
            await real_clock.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await db.con.execute("ROLLBACK")
        assert await db.rows() == []
        async with transaction(sink, UNIT) as tx:
            assert tx.committed is None
            assert await send(tx, batch_of(words(2))) == {}
        assert await db.rows() == words(2)


async def test_a_write_that_was_cut_off_is_undone_and_the_transaction_goes_on(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock
) -> None:
    """By an inner timeout; in the last write, or in one that others follow."""
    async with place(embedded_postgres.dsn) as db, db.sink() as sink:

        async def cut_off(batch: Batch[Any]) -> None:
            with pytest.raises(TimeoutError):
                async with real_clock.timeout_at(real_clock.now() + 0.05):
                    await send(tx, batch)

        await db.con.execute(f"BEGIN; INSERT INTO {db.table} VALUES (50, 'in the way')")
        async with transaction(sink, UNIT) as tx:
            assert await send(tx, batch_of(words(2))) == {}
            await cut_off(batch_of(words(100, 10)))
            assert await send(tx, batch_of(words(2, 200))) == {}
            await cut_off(batch_of([(30, "new"), (50, "again")]))
        await db.con.execute("ROLLBACK")
        assert await db.rows() == words(2) + words(2, 200)


async def test_a_lock_that_is_not_to_be_had_is_tried_again_in_its_savepoint(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock
) -> None:
    """P-T21: earlier writes stay, and the transaction continues."""
    impatient = {"server_settings": {"lock_timeout": "20"}}
    failed = asyncio.Event()
    async with place(embedded_postgres.dsn) as db:
        sink: Sink[Any] = stack(
            db.sink(connect_options=impatient),
            Observed(Failures(failed)),
            Retry(attempts=1000, backoff=tenacity.wait_none()),
        )
        await db.con.execute(f"BEGIN; INSERT INTO {db.table} VALUES (50, 'in the way')")
        async with opened(sink), transaction(sink, UNIT) as tx:
            assert await send(tx, batch_of(words(2))) == {}
            writing = asyncio.create_task(send(tx, batch_of(words(100, 10))))
            await failed.wait()
            await db.con.execute("ROLLBACK")
            assert await writing == {}
        assert len(await db.rows()) == 102


class Failures(Observer):
    def __init__(self, failed: asyncio.Event) -> None:
        self.failed = failed

    def on_flushed(
        self, batch: Batch[object], seconds: float, errors: Mapping[int, BaseException]
    ) -> None:
        if errors:
            self.failed.set()


async def test_a_serialization_failure_ends_the_transaction(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock
) -> None:
    """A trigger raises it here; a savepoint cannot help."""
    async with place(embedded_postgres.dsn) as db, db.sink() as sink:
        await db.con.execute(
            f"CREATE FUNCTION {db.table}_no() RETURNS trigger AS $$ BEGIN RAISE SQLSTATE "
            "'40001'; END $$ LANGUAGE plpgsql;"
            f"CREATE TRIGGER no BEFORE INSERT ON {db.table} FOR EACH ROW WHEN (NEW.id = 7) "
            f"EXECUTE FUNCTION {db.table}_no()"
        )
        with pytest.raises(TransactionLost):
            async with transaction(sink, UNIT) as tx:
                assert await send(tx, batch_of(words(2))) == {}
                assert classes(await send(tx, batch_of(words(2, 6)))) == {TransactionLost}
        assert await db.rows() == []


@pytest.mark.parametrize("unit", [UNIT, replace(UNIT, part=3)])
async def test_dead_letters_of_refused_rows_come_after_the_commit(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock, unit: Unit
) -> None:
    """P-T21: the ledger in the database records it, also if the table of letters is unavailable."""

    async def refuses(batch: Batch[Any]) -> None:
        raise PermanentError("no room")

    letters = MemorySink[Any]()
    async with place(embedded_postgres.dsn) as db:
        base = db.sink(pool_size=1)
        async with opened(sink := stack(base, DeadLetter(letters if unit is UNIT else refuses))):
            async with transaction(sink, unit) as tx:
                assert await send(tx, batch_of([*words(60), (61, "\0"), (62, "\0")])) == {}
                assert letters.items == []
            assert len(await db.rows()) == 60
            held = 0 if unit is UNIT else 2
            assert len(letters.items) == 2 - held
            assert tx.committed is not None
            assert tx.committed.letters_held == held
            assert await db.entries("letters_held, part") == [(held, unit.part)]
