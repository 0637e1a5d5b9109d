"""`PostgresQueueSink` with lost responses and killed servers: no job is lost or duplicated.

White box: a decorator that notes each failure inside `Retry`.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from tests.postgres.queues.sink.queue_help import create_queue, item, sink, stored
from tests.postgres.sink.postgres_help import batch_of, outcomes, proxied
from tests.postgres.streams.log_help import Log, fresh_name, install_log, role

from sluicegate import (
    Backoff,
    Batcher,
    Limits,
    Outcome,
    RefusedError,
    Retry,
    ThrottledError,
    UnknownOutcomeError,
    WriteResult,
    send,
    stack,
)
from sluicegate._core.decorator import WrappingSink
from sluicegate.postgres import install_streams
from sluicegate.testing import embedded_postgres as start_postgres
from sluicegate.testing.servers.require import there_or_skip

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sluicegate import Batch, Receipt
    from sluicegate.batcher import LoopClock
    from sluicegate.testing import EmbeddedPostgres


@pytest.fixture(scope="module")
def crashing() -> Iterator[EmbeddedPostgres]:
    """A server for these tests only, because they kill it."""
    with there_or_skip("postgres", start_postgres({})) as server:
        yield server


@pytest.mark.parametrize("options", [{}, {"queueing_lock": lambda row: f"lock {row['n']}"}])
@pytest.mark.parametrize("is_handled", [False, True])
async def test_a_retry_after_an_unknown_outcome_finds_what_was_enqueued(
    log: Log, real_clock: LoopClock, options: dict[str, Any], *, is_handled: bool
) -> None:
    """Q-T14: the connection is lost with the response. Also if the jobs have been handled
    meanwhile.
    """
    await create_queue(log)
    async with proxied(log.dsn) as (proxy, through), sink(log, dsn=through, **options) as it:
        batch = batch_of([item(None, n) for n in range(50)])
        proxy.cut_answer = "SELECT 50"
        errors = await send(it, batch)
        assert {type(error) for error in errors.values()} == {UnknownOutcomeError}
        assert len(await stored(log)) == 50
        if is_handled:
            async with log.connected() as con:
                await con.execute(f"DELETE FROM {log.sql}.job; DELETE FROM {log.sql}.queueing_lock")
        assert await send(it, batch) == {}
        assert set(outcomes(batch)) == {Outcome.DUPLICATE}
        assert len(await stored(log)) == (0 if is_handled else 50)


async def test_a_retry_after_an_unknown_outcome_enqueues_what_was_not(
    log: Log, real_clock: LoopClock
) -> None:
    """Q-T14: the connection is lost with the request."""
    await create_queue(log)
    async with proxied(log.dsn) as (proxy, through), sink(log, dsn=through) as it:
        batch = batch_of([item("a", n) for n in range(5)])
        proxy.cut_request = lambda kind, body: kind == b"B"
        errors = await send(it, batch)
        assert {type(error) for error in errors.values()} == {UnknownOutcomeError}
        assert await stored(log) == []
        assert await send(it, batch) == {}
        assert set(outcomes(batch)) == {Outcome.DELIVERED}
        assert [each.n for each in await stored(log)] == [*range(5)]


async def test_a_part_of_an_unanswered_batch_that_comes_again_is_found(
    log: Log, real_clock: LoopClock
) -> None:
    """Q-T14: ids belong to items, however a retry splits the batch."""
    await create_queue(log)
    async with proxied(log.dsn) as (proxy, through), sink(log, dsn=through) as it:
        batch = batch_of([item(None, n) for n in range(10)])
        proxy.cut_answer = "SELECT 10"
        await send(it, batch)
        for part in (range(3), range(3, 10)):
            assert await send(it, batch.pick(part)) == {}
        assert set(outcomes(batch)) == {Outcome.DUPLICATE}
    assert len(await stored(log)) == 10


async def test_a_lost_commit_of_several_statements_is_found_too(
    log: Log, real_clock: LoopClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Q-T14"""
    monkeypatch.setattr("sluicegate.postgres.queues.sink.PART", 100)
    await create_queue(log)
    async with proxied(log.dsn) as (proxy, through), sink(log, dsn=through) as it:
        batch = batch_of([item(None, "x" * 60) for _ in range(5)])
        proxy.cut_answer = "COMMIT"
        errors = await send(it, batch)
        assert {type(error) for error in errors.values()} == {UnknownOutcomeError}
        assert await send(it, batch) == {}
        assert set(outcomes(batch)) == {Outcome.DUPLICATE}
    assert len(await stored(log)) == 5


class Watched(WrappingSink[Any]):
    """Forwards everything, and signals writes and failures."""

    def __init__(self, inner: Any) -> None:
        super().__init__(inner)
        self.kinds: set[type[BaseException]] = set()
        self._written = asyncio.Semaphore(0)
        self._failed = asyncio.Event()

    async def write(self, batch: Batch[Any]) -> WriteResult | None:
        errors = await send(self.inner, batch)
        self.kinds.update(type(error) for error in errors.values())
        if not errors:
            self._written.release()
            return None
        self._failed.set()
        return WriteResult.failed(batch, errors)

    async def next_writes(self, count: int) -> None:
        """Return when this many more writes have succeeded."""
        while not self._written.locked():
            await self._written.acquire()
        for _ in range(count):
            await self._written.acquire()

    async def next_failure(self) -> None:
        self._failed.clear()
        await self._failed.wait()


ENDLESS = Retry(attempts=10_000, backoff=Backoff(base=0.02, longest=0.1))


class Filling:
    """Adds items of 20 keys until it is stopped."""

    def __init__(self, watched: Watched) -> None:
        self.count = 0
        self._watched = watched
        self._stops = asyncio.Event()
        self._task = asyncio.create_task(self._run())

    async def _run(self) -> set[Outcome]:
        limits = Limits(max_items=20, max_delay=0.005, max_pending_items=2000, workers=4)
        async with Batcher(
            stack(self._watched, ENDLESS), key=lambda row: row["key"], limits=limits
        ) as batcher:
            receipts: list[Receipt] = []
            while not self._stops.is_set():
                receipts.append(await batcher.submit(item(f"k{self.count % 20}", self.count)))
                self.count += 1
                await asyncio.sleep(0)
            return {await receipt.settled() for receipt in receipts}

    async def stopped(self) -> set[Outcome]:
        """Stop adding, wait for all items, and return their outcomes."""
        self._stops.set()
        return await self._task


@pytest.mark.long
async def test_a_server_that_is_killed_costs_no_job_and_makes_none_twice(
    crashing: EmbeddedPostgres, real_clock: LoopClock
) -> None:
    """Q-T14, counted at the destination, in order per key: SIGKILL twice under load."""
    log = Log(crashing.dsn, fresh_name())
    await install_log(log)
    await create_queue(log)
    watched = Watched(sink(log, key="key", close_timeout=1.0))
    filling = Filling(watched)
    for _ in range(2):
        await watched.next_writes(5)
        await asyncio.to_thread(crashing.kill)
        await watched.next_failure()
        await asyncio.to_thread(crashing.start)
    await watched.next_writes(5)
    assert await filling.stopped() <= {Outcome.DELIVERED, Outcome.DUPLICATE}
    rows = await stored(log)
    assert sorted(row.n for row in rows) == [*range(filling.count)]
    for key in range(20):
        mine = [row.n for row in rows if row.key == f"k{key}"]
        assert mine == sorted(mine)


async def test_a_right_that_is_revoked_for_a_while_costs_no_job(
    log: Log, real_clock: LoopClock
) -> None:
    await create_queue(log)
    async with role(log) as app:
        await install_streams(log.dsn, schema=log.schema, enqueue=app.name)
        watched = Watched(sink(log, dsn=app.dsn, key="key"))
        async with log.connected() as con:
            filling = Filling(watched)
            await watched.next_writes(5)
            await con.execute(f"REVOKE USAGE ON SCHEMA {log.sql} FROM {app.name}")
            await watched.next_failure()
            await con.execute(f"GRANT USAGE ON SCHEMA {log.sql} TO {app.name}")
        assert await filling.stopped() == {Outcome.DELIVERED}
    assert watched.kinds == {RefusedError}
    assert sorted(row.n for row in await stored(log)) == [*range(filling.count)]


async def test_a_queue_that_is_dropped_and_created_again_costs_no_job(
    log: Log, real_clock: LoopClock
) -> None:
    """Its jobs survive, because they are in another table."""
    await create_queue(log)
    watched = Watched(sink(log, key="key"))
    async with log.connected() as con:
        filling = Filling(watched)
        await watched.next_writes(5)
        await con.execute(f"DELETE FROM {log.sql}.queue")
        await watched.next_failure()
        await create_queue(log)
    assert await filling.stopped() == {Outcome.DELIVERED}
    assert watched.kinds == {RefusedError}
    assert sorted(row.n for row in await stored(log)) == [*range(filling.count)]


async def test_a_queue_that_is_full_for_a_while_costs_no_job(
    log: Log, real_clock: LoopClock
) -> None:
    """Producers wait while it is full, and continue after it was emptied."""
    await create_queue(log, max_depth=100)
    watched = Watched(sink(log, key="key"))
    filling = Filling(watched)
    taken: list[int] = []
    async with log.connected() as con:
        for _ in range(3):
            await watched.next_failure()
            rows = await con.fetch(
                f"DELETE FROM {log.sql}.job RETURNING (payload ->> 'n')::int AS n"
            )
            taken += [row["n"] for row in rows]
        await con.execute(f"UPDATE {log.sql}.queue SET max_depth = NULL")
    assert await filling.stopped() == {Outcome.DELIVERED}
    assert watched.kinds == {ThrottledError}
    assert sorted([*taken, *(row.n for row in await stored(log))]) == [*range(filling.count)]
