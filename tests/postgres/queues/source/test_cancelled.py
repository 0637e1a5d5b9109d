"""Leased jobs that an operator cancels: their handlers are cancelled, and none of them is handled again.

White box: how often leases are extended; the consumer learns of a cancellation then.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
from tests.postgres.access_help import access_from
from tests.postgres.queues.source.outages_help import Telling

from sluicegate import (
    Ack,
    Batcher,
    Consumer,
    Limits,
    Nak,
    RetryPolicy,
    TransientError,
    flow,
)
from sluicegate.consumer import Manual
from sluicegate.consumer.jobs import EventContext, JobScheduler
from sluicegate.postgres import PostgresQueueSource, QueueAdmin
from sluicegate.sinks import MemorySink

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence

    from tests.postgres.streams.log_help import Log

    from sluicegate import Batch, Message
    from sluicegate.consumer import ClaimHost, SourceClaim

pytestmark = pytest.mark.usefixtures("real_clock")
WITHIN = 30.0
LEASE = 30.0
EVERY = 0.2
"""Seconds between extensions."""


@pytest.fixture(autouse=True)
def _extended_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """No lease is lost on a busy machine, as short ones would be."""
    monkeypatch.setattr("sluicegate.postgres.queues.leasing.EXTENSIONS", LEASE / EVERY)


class KnowingHost(Telling):
    """A host that signals the first cancellation."""

    known: asyncio.Event

    def cancelled(self, claim: SourceClaim, offsets: Collection[int]) -> None:
        super().cancelled(claim, offsets)
        self.known.set()


class KnowingSource(PostgresQueueSource):
    """A source whose consumer signals that it knows of a cancellation."""

    known: asyncio.Event

    @asynccontextmanager
    async def open(self, host: ClaimHost) -> AsyncIterator[None]:
        knowing = KnowingHost(host, lambda _: None)
        knowing.known = self.known
        async with super().open(knowing):
            yield


def soon(tries: int, error: BaseException | None = None, waited: float = 0.0) -> float:
    """A backoff that is waited for here."""
    del tries, error, waited
    return 0.05


def late(tries: int, error: BaseException | None = None, waited: float = 0.0) -> float:
    """A backoff that does not end in time."""
    del tries, error, waited
    return 10 * WITHIN


class Run:
    """A consumer of three jobs of a queue, of which the first one to begin is cancelled."""

    def __init__(
        self,
        log: Log,
        key: str | None,
        backoff: Any = late,
        consume: Callable[[PostgresQueueSource, RetryPolicy, Any], Awaitable[object]] | None = None,
    ) -> None:
        self._consume = consume
        """Handles the jobs otherwise than by `Consumer.run`."""
        self._log = log
        self._backoff = backoff
        self._key = key
        self.began: list[int] = []
        self.cut: list[int] = []
        self.known = asyncio.Event()
        """Set when the consumer knows of the cancellation."""
        self.states: dict[int, str] = {}

    async def handle(self, act: Callable[[Run, Message], Awaitable[object]], **batch: Any) -> None:
        """Handle all jobs with `act`, which is passed the first one until it is cancelled."""
        settings: dict[str, Any] = {
            "schema": self._log.schema,
            "lease": LEASE,
            "poll": 0.02,
            "ends": True,
        }
        source = KnowingSource(access_from(self._log.dsn, settings), queue="jobs", **settings)
        source.known = self.known
        policy = RetryPolicy(attempts=1000, unlisted_attempts=1000, backoff=self._backoff)
        consumer = Consumer(source, name="test", retry=policy, concurrency=1)
        async with asyncio.timeout(WITHIN), self._log.connected() as con:
            async with QueueAdmin(self._log.dsn, schema=self._log.schema) as admin:
                await admin.create("jobs", keep_done=60)
                self._jobs = await admin.jobs("jobs")
                await con.execute(
                    f"INSERT INTO {self._log.sql}.job (queue, key, payload) "
                    "SELECT 'jobs', $1, to_jsonb(n) FROM generate_series(1, 3) n",
                    self._key,
                )

                async def handle(message: Message) -> object:
                    self.began.append(json.loads(message.value))
                    try:
                        return await act(self, message)
                    except asyncio.CancelledError:
                        self.cut.append(json.loads(message.value))
                        raise

                async def handle_batch(messages: Sequence[Message]) -> None:
                    for message in messages:
                        await handle(message)

                await (
                    self._consume(source, policy, handle)
                    if self._consume
                    else (
                        consumer.run_batch(handle_batch, **batch) if batch else consumer.run(handle)
                    )
                )
                for state in ("done", "cancelled"):
                    page = await self._jobs.list(state, payload=True)
                    self.states |= {job.payload: state for job in page.items}
                assert not (await self._jobs.list()).items

    async def cancel(self, place: int) -> None:
        assert await self._jobs.cancel([place]) == {place: "cancelling"}


async def until_cut(run: Run, message: Message) -> None:
    if json.loads(message.value) == 1 and not run.cut:
        await run.cancel(message.offset)
        await asyncio.Event().wait()


CANCELLED = {1: "cancelled", 2: "done", 3: "done"}


@pytest.mark.parametrize("key", ["a", None])
async def test_a_running_handler_is_cancelled_and_the_later_jobs_of_its_key_continue(
    log: Log, key: str | None
) -> None:
    run = Run(log, key)
    await run.handle(until_cut)
    assert (sorted(run.began), run.cut, run.states) == ([1, 2, 3], [1], CANCELLED)


async def test_a_job_that_waits_for_its_next_try_is_not_tried_again(log: Log) -> None:
    """It fails until its consumer knows; so its last try may be one behind the cancellation."""

    late = 0

    async def fail(run: Run, message: Message) -> object:
        nonlocal late
        if json.loads(message.value) > 1:
            return None
        late += run.known.is_set()
        if run.began == [1]:
            await run.cancel(message.offset)
        return Nak()

    run = Run(log, "a", soon)
    await run.handle(fail)
    assert run.states == CANCELLED
    assert late <= 1


async def test_a_job_that_is_ready_does_not_begin(log: Log) -> None:
    """It is leased, and waits for the only worker when the consumer learns that it is cancelled."""

    async def cancel_two(run: Run, message: Message) -> None:
        if run.began == [1]:
            await run.cancel(message.offset + 1)
            await until_cut(run, message)

    run = Run(log, None)
    await run.handle(cancel_two)
    assert (run.began, run.states) == ([1, 3], CANCELLED | {2: "cancelled"})


@pytest.mark.parametrize(
    ("answer", "state"), [(None, "cancelled"), (Ack(), "done"), (Nak(), "cancelled")]
)
async def test_a_handler_that_ignores_its_cancellation_decides_by_an_explicit_result(
    log: Log, answer: object, state: str
) -> None:
    async def swallow(run: Run, message: Message) -> object:
        try:
            await until_cut(run, message)
        except asyncio.CancelledError:
            run.cut.append(1)
            return answer
        return None

    run = Run(log, "a")
    await run.handle(swallow)
    assert (sorted(run.began), run.states) == ([1, 2, 3], CANCELLED | {1: state})


async def test_the_other_jobs_of_a_batch_are_tried_again(log: Log) -> None:
    run = Run(log, None, soon)
    await run.handle(until_cut, size=3, max_wait=0.05)
    assert (run.cut, run.states) == ([1], CANCELLED)


async def test_a_job_that_waits_for_its_settle_ends(log: Log) -> None:
    """A handler that returned `Manual` has ended; a late result has no effect."""
    kept: list[Message] = []

    async def hand_over(run: Run, message: Message) -> object:
        if json.loads(message.value) == 1:
            kept.append(message)
            await run.cancel(message.offset)
            return Manual()
        assert not kept[0].settle(Ack())
        return None

    run = Run(log, "a")
    await run.handle(hand_over)
    assert (sorted(run.began), run.cut, run.states) == ([1, 2, 3], [], CANCELLED)


@pytest.mark.parametrize("is_late", [False, True], ids=["before its result", "after it"])
async def test_a_handler_of_events_is_cancelled(log: Log, is_late: bool) -> None:
    """The work of a job that it has scheduled goes on, but its finaliser does not run."""
    worked, finalised = list[int](), list[int]()

    async def process(key: object, message: Message) -> None:
        if json.loads(message.value) == 1:
            await run.cancel(message.offset)
            await run.known.wait()
        worked.append(json.loads(message.value))

    async def finalise(
        context: EventContext, key: object, message: Message, error: BaseException | None
    ) -> None:
        finalised.append(json.loads(message.value))

    async def consume(source: PostgresQueueSource, policy: RetryPolicy, handle: Any) -> None:
        jobs = JobScheduler(process, finalise)

        async def event(context: EventContext) -> object:
            if is_late:
                return jobs.schedule(context, context.key, context.message)
            return await handle(context.message)

        async with Consumer(source, name="test", retry=policy, ordering="key") as consumer:
            await consumer.run_events(event, jobs=[jobs])

    run = Run(log, "a", consume=consume)
    await run.handle(until_cut)
    assert run.states == CANCELLED
    assert run.cut == ([] if is_late else [1])
    assert finalised == ([2, 3] if is_late else [])
    assert worked.count(1) == is_late
    assert {*worked} == ({1, 2, 3} if is_late else set())  # later events of its key began again


async def test_an_async_transform_of_a_pipe_is_cancelled(log: Log) -> None:
    rows = MemorySink[Any]()

    async def consume(source: PostgresQueueSource, policy: RetryPolicy, handle: Any) -> None:
        async def transform(message: Message) -> object:
            await handle(message)
            return json.loads(message.value)

        await flow.pipe(source, Batcher(rows), transform, poison="exit", retry=policy).run()

    run = Run(log, "a", consume=consume)
    await run.handle(until_cut)
    assert (run.cut[:1], run.states) == ([1], CANCELLED)
    assert sorted(rows.items) == [2, 3]


@pytest.mark.parametrize("is_refused", [False, True])
async def test_a_job_whose_row_is_in_the_batcher_of_a_pipe_is_written_once_at_most(
    log: Log, is_refused: bool
) -> None:
    """It is done if its row is written; if that fails, it is not tried again."""
    rows, tries = list[int](), 0

    async def consume(source: PostgresQueueSource, policy: RetryPolicy, handle: Any) -> None:
        async def write(batch: Batch[Message]) -> None:
            nonlocal tries
            for message in batch:
                number = json.loads(message.value)
                if number == 1:
                    tries += 1
                    if tries == 1:
                        await run.cancel(message.offset)
                        await run.known.wait()
                    if is_refused:
                        raise TransientError("not now")
                rows.append(number)

        batcher = Batcher(write, key=lambda row: row.key, limits=Limits(max_items=1))
        await flow.pipe(source, batcher, poison="exit", retry=policy).run()

    run = Run(log, "a", soon, consume=consume)
    await run.handle(until_cut)
    assert (rows, tries) == (([2, 3], 1) if is_refused else ([1, 2, 3], 1))
    assert run.states == (CANCELLED if is_refused else CANCELLED | {1: "done"})
