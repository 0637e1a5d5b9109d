"""Work in the order of a partition that does not come from a record, and the state that it sees.

White box: the store of state in memory, by itself.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
from consumer_help import P0, P1, log_of, records

from sluicegate import ConfigError, Consumer, Nak, Terminate, ToDeadLetter
from sluicegate.consumer import Manual, MemoryLog, MemorySource, Position, ResultTypeError
from sluicegate.consumer.jobs import (
    BatchItems,
    EventContext,
    Incomplete,
    Interjector,
    ItemBatcher,
    JobScheduler,
    MemoryState,
    NotAssigned,
)
from sluicegate.consumer.jobs.state import MemoryStore

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from sluicegate.consumer.jobs import BatchItem
    from sluicegate.testing import FakeClock


@asynccontextmanager
async def running(
    source: MemorySource,
    clock: FakeClock,
    handler: Callable[[EventContext], Any],
    **options: Any,
) -> AsyncGenerator[Consumer]:
    """A consumer that runs until the block ends."""
    async with (
        Consumer(source, ordering="partition", clock=clock) as consumer,
        asyncio.TaskGroup() as tasks,
    ):
        run = tasks.create_task(consumer.run_events(handler, **options))
        await clock.advance(0.0)
        try:
            yield consumer
        finally:
            consumer.stop()
            await run


async def idle(context: EventContext) -> None:
    """Do nothing."""


async def idle_job(key: object, value: object) -> None:
    """Do nothing."""


async def test_the_times_are_apart_and_counted_from_the_end(fake_clock: FakeClock) -> None:
    """G-T12: `every - jitter` to `every + jitter` from one end to the next beginning."""
    began, ended = list[float](), list[float]()

    async def tick(context: EventContext) -> None:
        began.append(fake_clock.now())
        await fake_clock.sleep(0.5)
        ended.append(fake_clock.now())

    source = MemorySource(log_of("a"), clock=fake_clock)
    every = Interjector(tick, every=2.0, jitter=0.5, seed=7)
    async with running(source, fake_clock, idle, interjections=[every]):
        await fake_clock.advance(100.0)
    waits = [then - before for before, then in zip(ended, began[1:], strict=False)]
    assert len(waits) > 30
    assert all(1.5 <= wait <= 2.5 for wait in waits)
    assert max(waits) - min(waits) > 0.5


async def test_it_runs_between_events_under_load(fake_clock: FakeClock) -> None:
    """G-T12: never beside an event of the same partition, however long its queue is."""
    inside = ticks = handled = 0

    async def turn() -> None:
        nonlocal inside
        inside += 1
        assert inside == 1
        await fake_clock.sleep(0.01)
        inside -= 1

    async def tick(context: EventContext) -> None:
        nonlocal ticks
        await turn()
        ticks += 1

    async def handle(context: EventContext) -> None:
        nonlocal handled
        await turn()
        handled += 1

    source = MemorySource(log_of(*range(500)), clock=fake_clock)
    async with running(source, fake_clock, handle, interjections=[Interjector(tick, every=0.1)]):
        await fake_clock.advance(4.0)
        assert handled < 500
        assert ticks > 30
        await fake_clock.advance(10.0)
    assert handled == 500


@pytest.mark.parametrize(
    "result", [Nak(error=OSError("no row")), ToDeadLetter("bad"), Terminate("bad"), Manual()]
)
@pytest.mark.parametrize("is_later", [False, True])
async def test_a_result_that_only_an_event_can_have_fails_an_interjection(
    fake_clock: FakeClock, caplog: pytest.LogCaptureFixture, result: object, *, is_later: bool
) -> None:
    """consumer/G34: it has no dead letter and no retry, so such a result must not count as success.
    A callback may serve both events and interjections.
    """

    async def finalise(*_: object) -> object:
        return result

    jobs = JobScheduler(idle_job, finalise)

    async def tick(context: EventContext) -> object:
        return jobs.schedule(context, "k", None) if is_later else result

    source = MemorySource(log_of("a"), clock=fake_clock)
    async with running(source, fake_clock, idle, jobs=[jobs]) as consumer:
        with pytest.raises(ResultTypeError, match=type(result).__name__) as raised:
            await consumer.interject(tick)
    assert raised.value.__cause__ is getattr(result, "error", None)
    assert "an interjection in t/0 failed" in caplog.text


async def test_failed_items_are_parked_and_tried_again(fake_clock: FakeClock) -> None:
    """consumer/G19, G-T13: stored with their due time, removed when due, and stored again if they
    fail.
    """
    log, state = log_of("a", "b", "c"), MemoryState(keep=True)
    failures = {"a": 2, "b": 0, "c": 1}
    written: list[str] = []

    async def execute(items: list[BatchItem]) -> None:
        for item in items:
            if failures[item.value] > 0:
                failures[item.value] -= 1
                item.error = ConnectionError("busy")
            else:
                written.append(item.value)

    async def done(context: EventContext, group: BatchItems) -> None:
        due = fake_clock.now() + 1.0
        for item in group.items:
            if item.error is not None:
                context.store.put(f"failed/{due:012.3f}/{item.key}", item.value)

    batcher = ItemBatcher(execute, max_batch_size=10)

    async def handle(context: EventContext) -> Incomplete:
        return batcher.add(BatchItems(context, f"table/{context.key}", done).add(context.key))

    async def retry(context: EventContext) -> Incomplete | None:
        due = f"failed/{fake_clock.now():012.3f}"
        failed = [*context.store.range("failed/", due, limit=2)]
        if not failed:
            return None
        group = BatchItems(context, "retry", done)
        for place, value in failed:
            context.store.delete(place)
            group.add_with_key(place.rpartition("/")[2], value)
        return batcher.add(group)

    for seconds in (0.5, 10.0):  # across a restart
        source = MemorySource(log, clock=fake_clock)
        async with running(
            source,
            fake_clock,
            handle,
            jobs=[batcher],
            state=state,
            interjections=[Interjector(retry, every=0.3)],
        ):
            await fake_clock.advance(seconds)
        assert log.positions[P0] == Position(3)
    assert sorted(written) == ["a", "b", "c"]
    assert len(state.stores[P0]) == 0


async def test_one_that_raises_is_tried_at_its_next_time(
    fake_clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    """consumer/G17: the error is logged, and no position moves."""
    count = 0

    async def tick(context: EventContext) -> None:
        nonlocal count
        count += 1
        raise ValueError("no")

    source = MemorySource(log_of("a"), clock=fake_clock)
    async with running(
        source, fake_clock, idle, interjections=[Interjector(tick, every=1.0)]
    ) as consumer:
        await fake_clock.advance(3.5)
        assert consumer.stats().in_flight.messages == 0
    assert count == 3
    assert caplog.text.count("an interjection in t/0 failed") == 3


async def test_one_whose_finaliser_raises_blocks_nothing(
    fake_clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    """consumer/G17: it is not an event: none of its turns is retried or becomes poison."""
    handled = list[int]()

    async def process(key: str, value: object) -> None:
        """Do nothing."""

    async def finalise(context: EventContext, *_: object) -> None:
        raise ValueError("no")

    jobs = JobScheduler(process, finalise)

    async def tick(context: EventContext) -> Incomplete:
        return jobs.schedule(context, "retry", None)

    async def handle(context: EventContext) -> None:
        handled.append(context.message.offset)

    log = log_of("a")
    source = MemorySource(log, clock=fake_clock)
    every = Interjector(tick, every=1.0)
    async with running(source, fake_clock, handle, jobs=[jobs], interjections=[every]) as consumer:
        await fake_clock.advance(3.5)
        with pytest.raises(ValueError, match="no"):
            await consumer.interject(tick)
        log.produce("t", b"1", key="b")
        await fake_clock.advance(1.0)
        assert consumer.stats().in_flight.messages == 0
    assert handled == [0, 1]
    assert caplog.text.count("an interjection in t/0 failed") == 5


async def test_one_that_takes_too_long_is_cut_and_runs_again_at_its_next_time(
    fake_clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    """consumer/G17: the consumer's timeout applies to interjections."""
    began = list[float]()

    async def tick(context: EventContext) -> None:
        began.append(fake_clock.now())
        await asyncio.Event().wait()

    source = MemorySource(log_of("a"), clock=fake_clock)
    every = Interjector(tick, every=10.0)
    async with (
        Consumer(source, ordering="partition", timeout=1.0, clock=fake_clock) as consumer,
        asyncio.TaskGroup() as tasks,
    ):
        start = fake_clock.now()
        run = tasks.create_task(consumer.run_events(idle, interjections=[every]))
        await fake_clock.advance(25.0)
        assert consumer.stats().in_flight.messages == 0
        consumer.stop()
        await run
    assert [at - start for at in began] == [pytest.approx(10.0), pytest.approx(21.0, abs=0.2)]
    assert caplog.text.count("an interjection in t/0 failed") == 2


async def test_one_that_a_drain_cuts_is_told(fake_clock: FakeClock) -> None:
    """consumer/G18: its caller does not wait forever."""

    async def tick(context: EventContext) -> None:
        await asyncio.Event().wait()

    source = MemorySource(log_of("a"), clock=fake_clock)
    async with running(source, fake_clock, idle) as consumer:
        waiting = asyncio.ensure_future(consumer.interject(tick))
        await fake_clock.advance(1.0)
    with pytest.raises(NotAssigned, match="revoked meanwhile"):
        await waiting


async def test_now_in_one_partition_or_in_all(fake_clock: FakeClock) -> None:
    """consumer/G18: the call suspends until completion and raises its error."""
    log = MemoryLog([*records("a"), *records("b", partition=1)])
    source, seen = MemorySource(log, clock=fake_clock), list[object]()

    async def look(context: EventContext) -> None:
        seen.append(context.partition)

    async def fail(context: EventContext) -> None:
        raise KeyError("x")

    async with running(source, fake_clock, idle) as consumer:
        await consumer.interject(look, P1)
        assert seen == [P1]
        await consumer.interject(look)
        assert sorted(seen[1:]) == [P0, P1]  # type: ignore[type-var]
        with pytest.raises(KeyError):
            await consumer.interject(fail, P0)
        source.lose([P1])
        with pytest.raises(NotAssigned):
            await consumer.interject(look, P1)


async def test_one_that_its_own_turn_would_wait_for(fake_clock: FakeClock) -> None:
    """Another partition is fine."""
    log, found = MemoryLog([*records("a"), *records("b", partition=1)]), list[object]()

    async def handle(context: EventContext) -> None:
        if context.partition == P0:
            await consumer.interject(idle, P1)
            for partition in (P0, None):
                with pytest.raises(ConfigError, match="in the turn of"):
                    await consumer.interject(idle, partition)
            found.append(context.partition)

    async with running(MemorySource(log, clock=fake_clock), fake_clock, handle) as consumer:
        await fake_clock.advance(1.0)
    assert found == [P0]


async def test_state_belongs_to_a_claim(fake_clock: FakeClock) -> None:
    """consumer/G28: it is opened before the first event and dropped with the claim."""
    log, state, counts = log_of("a", "a"), MemoryState(), list[int]()
    source = MemorySource(log, clock=fake_clock)

    async def count(context: EventContext) -> None:
        context.store.put("n", context.store.get("n", 0) + 1)
        counts.append(context.store.get("n"))

    async with running(source, fake_clock, count, state=state) as consumer:
        await fake_clock.advance(0.1)
        await consumer.commit()
        source.lose([P0])
        await fake_clock.advance(0.1)
        assert state.stores == {}
        source.assign([P0])
        log.append(records("a", first=2)[0])
        await fake_clock.advance(0.1)
    assert counts == [1, 2, 1]


def test_a_store_is_in_order() -> None:
    """consumer/G28: ranges follow the key order and contain the keys at the time of the call."""
    store = MemoryStore({"b": 2, "a": 1, "d": 4})
    assert [*store.range()] == [("a", 1), ("b", 2), ("d", 4)]
    store.put("c", 3)
    assert store.delete("a")
    assert not store.delete("a")
    before = store.range("b")
    store.put("bb", 0)
    assert [*before] == [("b", 2), ("c", 3), ("d", 4)]
    assert [*store.range("b", "c", limit=1)] == [("b", 2)]
    assert (store.get("x"), store.get("x", 0), len(store)) == (None, 0, 4)


async def test_what_needs_turns_of_partitions_is_refused_without(fake_clock: FakeClock) -> None:
    """G-T3, G-T17: the turns of a partition do not exclude each other unless it is said."""
    async with Consumer(MemorySource(log_of("a"), clock=fake_clock), clock=fake_clock) as consumer:
        with pytest.raises(ConfigError, match=r"must be given for run_events"):
            await consumer.run_events(idle)
        with pytest.raises(ConfigError, match=r"Consumer\(ordering=\"partition\"\)"):
            await consumer.run_events(idle, state=MemoryState())
        with pytest.raises(ConfigError, match="needs a consumer that runs events"):
            await consumer.interject(idle)
    with pytest.raises(ConfigError, match="must be at most every"):
        Interjector(idle, every=1.0, jitter=2.0)
