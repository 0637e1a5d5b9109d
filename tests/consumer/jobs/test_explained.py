"""How `explain()` describes events that are completed later. White box: the reasons, as values."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from consumer_help import log_of
from watch_help import causes_of

from sluicegate import Consumer, Nak
from sluicegate.consumer import MemorySource
from sluicegate.consumer.jobs import BatchItems, Incomplete, ItemBatcher, JobScheduler
from sluicegate.consumer.operating.report import WaitReason

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from sluicegate.consumer.jobs import EventContext
    from sluicegate.testing import FakeClock


@asynccontextmanager
async def running(
    clock: FakeClock, keys: str, handler: Callable[[EventContext], Any], *jobs: Any, **options: Any
) -> AsyncGenerator[Consumer]:
    """A consumer of events that has run for some time, with work that never ends."""
    source = MemorySource(log_of(*keys), clock=clock)
    settings: dict[str, Any] = {"ordering": "partition", "drain": 0.1, **options}
    async with (
        Consumer(source, clock=clock, **settings) as consumer,
        asyncio.TaskGroup() as tasks,
    ):
        run = tasks.create_task(consumer.run_events(handler, jobs=jobs))
        await clock.advance(2.0)
        try:
            yield consumer
        finally:
            consumer.stop()
            await run


def told(consumer: Consumer) -> list[str]:
    """The reasons for which the first partition waits."""
    return [str(cause) for cause in causes_of(consumer)]


async def forever(*_: object) -> None:
    """Never end."""
    await asyncio.Event().wait()


async def complete(context: EventContext) -> None:
    """Complete the event."""


def scheduled(jobs: JobScheduler[Any, Any]) -> Callable[[EventContext], Any]:
    """A handler that schedules its event by key."""

    async def handle(context: EventContext) -> Incomplete:
        return jobs.schedule(context, context.key, None)

    return handle


async def test_a_job_is_told_with_its_scheduler_and_its_place(fake_clock: FakeClock) -> None:
    """consumer/C:N5: running, waiting for a worker, or waiting for its key."""
    jobs = JobScheduler(forever, concurrency=1, name="writes")
    async with running(fake_clock, "aab", scheduled(jobs), jobs) as consumer:
        assert told(consumer) == [
            "waiting for its job for at least 1.0 s (in writes: running), "
            "until its processor, or its batch, has ended and its finaliser has run"
        ]
        events = consumer._open().settler.jobs
        assert events is not None
        places = [
            events.job_of(message)
            for message in sorted(consumer._open().settler.outside, key=lambda each: each.offset)
        ]
        assert places == [
            "in writes: running",
            "in writes: behind earlier jobs of its key",
            "in writes: waiting for a worker",
        ]


async def test_a_job_of_the_users_own_has_no_place(fake_clock: FakeClock) -> None:
    """consumer/C:N5: the consumer knows nothing about it."""

    async def handle(context: EventContext) -> Incomplete:
        return Incomplete()

    async with running(fake_clock, "a", handle) as consumer:
        (cause,) = causes_of(consumer)
        assert cause.reason_text == "waiting for its job for at least 1.0 s"


async def test_a_group_is_told_with_its_batcher(fake_clock: FakeClock) -> None:
    """consumer/C:N5: the number of its remaining items, and the limit that it waits for."""
    items = ItemBatcher(
        forever, max_batch_size=2, max_items=2, max_concurrent_batches=1, name="rows"
    )

    async def written(context: EventContext, group: BatchItems) -> None:
        """Complete the event."""

    async def handle(context: EventContext) -> Incomplete:
        return items.add(BatchItems(context, context.key, written).add(1, 2))

    async with running(fake_clock, "abc", handle, items) as consumer:
        waiting, held = causes_of(consumer)
        assert waiting.reason_text == (
            "waiting for its job for at least 1.0 s (in rows: 2 of 2 items not executed)"
        )
        assert held.reason is WaitReason.HELD
        assert held.reason_text == (
            "held by t/0@1 (no room for its job for at least 1.0 s (in rows: 2 of 2 items))"
        )


async def test_an_oldest_event_without_room_is_told_once(fake_clock: FakeClock) -> None:
    """consumer/C:N5: an interjection holds the only key."""
    jobs = JobScheduler(forever, concurrency=1, max_keys=1, name="writes")
    handle = scheduled(jobs)

    async def first_nothing(context: EventContext) -> Incomplete | None:
        return None if context.message.offset == 0 else await handle(context)

    async def take_the_key(context: EventContext) -> Incomplete:
        return jobs.schedule(context, "all", None)

    log = log_of("a")
    async with (
        Consumer(
            MemorySource(log, clock=fake_clock), clock=fake_clock, ordering="partition", drain=0.1
        ) as consumer,
        asyncio.TaskGroup() as tasks,
    ):
        run = tasks.create_task(consumer.run_events(first_nothing, jobs=[jobs]))
        await fake_clock.advance(1.0)
        interjected = asyncio.ensure_future(consumer.interject(take_the_key))
        await fake_clock.advance(1.0)
        log.produce("t", b"1", key="b")
        await fake_clock.advance(2.0)
        oldest, interjection = causes_of(consumer)
        consumer.stop()
        await run
    assert oldest.reason_text == (
        "no room for its job for at least 1.0 s (in writes: 1 of 1 keys, 100 jobs per key at most)"
    )
    assert "waiting for its job" in interjection.reason_text
    assert "(in writes: running)" in interjection.reason_text
    assert interjected.exception() is not None


async def test_an_event_without_room_is_told_with_the_bounds(fake_clock: FakeClock) -> None:
    """consumer/C:N5: beside the oldest event, which waits for its job; no event behind it
    begins.
    """
    jobs = JobScheduler(forever, concurrency=1, max_keys=1, name="writes")

    async def handle(context: EventContext) -> Incomplete | None:
        if context.message.offset == 0:
            return None
        return jobs.schedule(context, context.key, None)

    async with running(fake_clock, "aabc", handle, jobs) as consumer:
        waiting, held = causes_of(consumer)
        assert waiting.reason is WaitReason.JOB
        assert "held by t/0@2 (no room for its job" in held.reason_text
        assert "(in writes: 1 of 1 keys, 100 jobs per key at most)" in held.reason_text
        (partition,) = consumer.explain().partitions
        assert partition.unfinished == 3


async def test_an_event_to_be_finalised_names_the_one_that_has_the_turn(
    fake_clock: FakeClock,
) -> None:
    """consumer/C:N5: the other event backs off; an event whose job runs does not hold the turn."""

    async def process(key: int, value: object) -> None:
        await fake_clock.sleep((1.0, 0.5, 1e6)[key])

    async def finalise(context: EventContext, key: int, *_: object) -> Nak | None:
        return Nak(100.0) if key == 1 else None

    jobs = JobScheduler(process, finalise)

    async def handle(context: EventContext) -> Incomplete:
        return jobs.schedule(context, context.message.offset, None)

    async with running(fake_clock, "abc", handle, jobs) as consumer:
        (cause,) = causes_of(consumer)
        assert cause.reason_text.startswith("queued behind t/0@1 (backing off for 98.5 s")


async def test_an_interjection_that_runs_is_told(fake_clock: FakeClock) -> None:
    """consumer/C:N5: beside the oldest event, which waits for the interjection or for its job."""
    jobs = JobScheduler(forever, name="writes")
    async with running(fake_clock, "a", scheduled(jobs), jobs) as consumer:
        interjected = asyncio.ensure_future(consumer.interject(forever))
        await fake_clock.advance(3.0)
        waiting, interjection = causes_of(consumer)
        assert waiting.reason is WaitReason.JOB
        assert interjection.reason_text == "interjection (running for at least 2.0 s)"
    assert interjected.done()
    assert interjected.exception() is not None


async def test_an_event_behind_an_interjection_names_it(fake_clock: FakeClock) -> None:
    """consumer/C:N5: the interjection holds the partition's turn."""
    log = log_of("a")
    async with (
        Consumer(
            MemorySource(log, clock=fake_clock), clock=fake_clock, ordering="partition", drain=0.1
        ) as consumer,
        asyncio.TaskGroup() as tasks,
    ):
        run = tasks.create_task(consumer.run_events(complete))
        await fake_clock.advance(1.0)
        interjected = asyncio.ensure_future(consumer.interject(forever))
        await fake_clock.advance(1.0)
        log.produce("t", b"1", key="b")
        await fake_clock.advance(2.0)
        (queued, _) = causes_of(consumer)
        consumer.stop()
        await run
    assert queued.reason_text == (
        "queued behind an interjection in t/0 (running for at least 2.0 s, "
        "until the handler returns, or is cancelled by its timeout)"
    )
    assert interjected.exception() is not None
