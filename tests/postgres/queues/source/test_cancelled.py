"""Leased jobs that an operator cancels: their handlers are cancelled, and none of them is handled again."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest
from tests.postgres.access_help import access_from

from sluicegate import Ack, Consumer, Nak, RetryPolicy
from sluicegate.postgres import PostgresQueueSource, QueueAdmin

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from tests.postgres.streams.log_help import Log

    from sluicegate import Message

pytestmark = pytest.mark.usefixtures("real_clock")
WITHIN = 30.0


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

    def __init__(self, log: Log, key: str | None, backoff: Any = late) -> None:
        self._log = log
        self._backoff = backoff
        self._key = key
        self.began: list[int] = []
        self.cut: list[int] = []
        self.states: dict[int, str] = {}

    async def handle(self, act: Callable[[Run, Message], Awaitable[object]], **batch: Any) -> None:
        """Handle all jobs with `act`, which is passed the first one until it is cancelled."""
        settings: dict[str, Any] = {
            "schema": self._log.schema,
            "lease": 0.6,
            "poll": 0.02,
            "ends": True,
        }
        source = PostgresQueueSource(access_from(self._log.dsn, settings), queue="jobs", **settings)
        policy = RetryPolicy(attempts=50, unlisted_attempts=50, backoff=self._backoff)
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

                await (consumer.run_batch(handle_batch, **batch) if batch else consumer.run(handle))
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

    async def fail(run: Run, message: Message) -> object:
        if json.loads(message.value) > 1:
            return None
        if run.began == [1]:
            await run.cancel(message.offset)
        return Nak()

    run = Run(log, "a", soon)
    await run.handle(fail)
    assert run.states == CANCELLED
    assert 1 <= run.began.count(1) < 20


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
