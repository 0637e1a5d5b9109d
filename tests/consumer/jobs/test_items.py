"""Batches of items: one call for many events, one callback per event."""

from __future__ import annotations

import asyncio
from random import Random
from typing import TYPE_CHECKING, Any

import pytest
from consumer_help import P0, log_of, records

from sluicegate import ConfigError, Consumer
from sluicegate.consumer import MemoryLog, MemorySource, Position
from sluicegate.consumer.jobs import BatchItem, BatchItems, EventContext, Incomplete, ItemBatcher

if TYPE_CHECKING:
    from collections.abc import Callable

    from sluicegate.consumer import DrainReport
    from sluicegate.testing import FakeClock


async def run(
    log: MemoryLog, clock: FakeClock, handler: Callable[[EventContext], Any], *jobs: ItemBatcher
) -> DrainReport:
    """Handle all records of a log."""
    source = MemorySource(log, ends=True, clock=clock)
    async with Consumer(source, ordering="partition", clock=clock) as consumer:
        return await consumer.run_events(handler, jobs=jobs)


async def test_more_items_than_a_batch_run_one_after_another(fake_clock: FakeClock) -> None:
    """consumer/G13, consumer/G14, G-T6: two executions of ten items, in order, and one callback
    with all items.
    """
    running, batches, told = 0, list[list[int]](), list[list[object]]()

    async def execute(items: list[BatchItem]) -> None:
        nonlocal running
        running += 1
        assert running == 1
        batches.append([item.value for item in items])
        await fake_clock.sleep(1.0)
        for item in items:
            item.user_data = -item.value
        items[0].error = ValueError("first of its batch")
        running -= 1

    async def written(context: EventContext, group: BatchItems) -> None:
        told.append([item.user_data for item in group.items])
        assert [item.value for item in group.items if item.error] == [0, 10]
        assert group.user_data == "mine"

    batcher = ItemBatcher(execute, max_batch_size=10)

    async def handle(context: EventContext) -> Incomplete:
        group = BatchItems(context, "k", written).add(*range(20))
        group.user_data = "mine"
        return batcher.add(group)

    await run(log_of("k"), fake_clock, handle, batcher)
    assert batches == [[*range(10)], [*range(10, 20)]]
    assert told == [[-value for value in range(20)]]


async def test_a_placeholder_is_complete_in_its_order(fake_clock: FakeClock) -> None:
    """consumer/G15, G-T7: it is not executed, and waits for the items of its key in a batch."""
    executed, done = list[object](), list[int]()

    async def execute(items: list[BatchItem]) -> None:
        executed.extend(item.value for item in items)
        await fake_clock.sleep(5.0)

    async def written(context: EventContext, group: BatchItems) -> None:
        done.append(context.message.offset)

    batcher = ItemBatcher(execute, max_batch_size=1)

    async def handle(context: EventContext) -> Incomplete:
        group = BatchItems(context, context.key, written)
        return batcher.add(group if context.message.offset else group.add("value"))

    await run(log_of("k", "k", "other"), fake_clock, handle, batcher)
    assert executed == ["value"]
    assert done == [2, 0, 1]


async def test_a_key_is_in_one_running_batch(fake_clock: FakeClock) -> None:
    """consumer/G11, consumer/G12, G-T8, G-T9: across partitions, under random load; sizes, numbers
    and waiting times are limited.
    """
    random, running = Random(3), list[list[BatchItem]]()
    log = MemoryLog(
        [
            *records([random.randrange(20) for _ in range(500)]),
            *records([random.randrange(20) for _ in range(500)], partition=1),
        ]
    )
    last: dict[tuple[int, int], int] = {}
    shared = twice = 0

    async def execute(items: list[BatchItem]) -> None:
        nonlocal shared, twice
        keys = [item.key for item in items]
        assert len(items) <= 7
        assert len(running) < 3
        assert not {item.key for batch in running for item in batch} & {*keys}
        shared += len({item.value[0] for item in items}) > 1
        twice += len({*keys}) < len(keys)
        running.append(items)
        await fake_clock.sleep(random.random() / 100)
        running.remove(items)
        for item in items:
            number, offset = item.value
            assert last.get((number, item.key), -1) < offset
            last[number, item.key] = offset

    async def written(context: EventContext, group: BatchItems) -> None:
        assert group.items[0].error is None, group.items[0].error

    batcher = ItemBatcher(execute, max_batch_size=7, max_concurrent_batches=3)

    async def handle(context: EventContext) -> Incomplete:
        value = (context.partition.partition, context.message.offset)
        return batcher.add(BatchItems(context, context.key, written).add(value))

    report = await run(log, fake_clock, handle, batcher)
    assert report.counts.acked == 1000
    assert shared
    assert twice


async def test_a_first_item_waits_for_the_delay_only(fake_clock: FakeClock) -> None:
    """consumer/G12, G-T9: a full batch does not wait."""
    began: list[tuple[float, int]] = []
    start = fake_clock.now()

    async def execute(items: list[BatchItem]) -> None:
        began.append((round(fake_clock.now() - start, 3), len(items)))

    async def written(*_: object) -> None:
        pass

    batcher = ItemBatcher(execute, max_batch_size=3, delay=0.25)

    async def handle(context: EventContext) -> Incomplete:
        return batcher.add(BatchItems(context, context.key, written).add(1))

    log = log_of(*range(4))
    source = MemorySource(log, clock=fake_clock)
    async with (
        Consumer(source, ordering="partition", clock=fake_clock) as consumer,
        asyncio.TaskGroup() as tasks,
    ):
        running = tasks.create_task(consumer.run_events(handle, jobs=[batcher]))
        await fake_clock.advance(1.0)
        assert began == [(0.0, 3), (0.25, 1)]
        log.append(records([9], first=4)[0])
        await fake_clock.advance(0.1)
        consumer.stop()  # does not wait for its delay
        await running
    assert began[2] == (1.1, 1)


async def test_an_executor_that_raises_fails_its_items(fake_clock: FakeClock) -> None:
    """G-T10: those without their own error; the next batch runs."""
    told: list[list[str]] = []

    async def execute(items: list[BatchItem]) -> None:
        if items[0].value == "bad":
            items[0].error = KeyError("mine")
            raise OSError("the whole call")

    async def written(context: EventContext, group: BatchItems) -> None:
        told.append([type(item.error).__name__ for item in group.items])

    batcher = ItemBatcher(execute, max_batch_size=2)

    async def handle(context: EventContext) -> Incomplete:
        return batcher.add(BatchItems(context, "k", written).add(context.key, "x"))

    await run(log_of("bad", "good"), fake_clock, handle, batcher)
    assert told == [["KeyError", "OSError"], ["NoneType", "NoneType"]]


async def test_items_have_keys_of_their_own(fake_clock: FakeClock) -> None:
    """consumer/G13, G-T11: five keys, one callback; a failed item reports its own key."""
    failed: list[object] = []

    async def execute(items: list[BatchItem]) -> None:
        for item in items:
            if item.key == "k3":
                item.error = ValueError()

    async def written(context: EventContext, group: BatchItems) -> None:
        failed.extend(item.key for item in group.items if item.error)

    batcher = ItemBatcher(execute, max_batch_size=2, max_concurrent_batches=5)

    async def handle(context: EventContext) -> Incomplete:
        group = BatchItems(context, "retry", written)
        for number in range(5):
            group.add_with_key(f"k{number}", number)
        return batcher.add(group)

    report = await run(log_of("e"), fake_clock, handle, batcher)
    assert failed == ["k3"]
    assert report.counts.acked == 1


async def test_a_full_batch_runs_before_later_events_are_handled(fake_clock: FakeClock) -> None:
    """G-T9: its last item starts it, and handlers that never suspend yield to it."""
    handled, at_once = 0, list[int]()

    async def execute(items: list[BatchItem]) -> None:
        at_once.append(handled)

    async def written(context: EventContext, group: BatchItems) -> None:
        """Complete the event."""

    batcher = ItemBatcher(execute, max_batch_size=10)

    async def handle(context: EventContext) -> Incomplete:
        nonlocal handled
        handled += 1
        return batcher.add(BatchItems(context, context.key, written).add(1))

    await run(log_of(*range(100)), fake_clock, handle, batcher)
    assert at_once == [*range(10, 101, 10)]


async def test_what_is_inside_is_bounded(fake_clock: FakeClock) -> None:
    """G-T15: an event with more items waits for capacity, without deadlock."""
    most = 0

    async def execute(items: list[BatchItem]) -> None:
        await fake_clock.sleep(0)

    async def written(context: EventContext, group: BatchItems) -> None:
        nonlocal most
        most = max(most, batcher.inside)

    batcher = ItemBatcher(execute, max_batch_size=10, max_concurrent_batches=1, max_items=30)

    async def handle(context: EventContext) -> Incomplete:
        return batcher.add(BatchItems(context, context.key, written).add(1, 2, 3))

    log = log_of(*[number % 50 for number in range(2000)])
    report = await run(log, fake_clock, handle, batcher)
    assert report.counts.acked == 2000
    assert 0 < most <= 30
    assert log.positions[P0] == Position(2000)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"max_batch_size": 0}, "max_batch_size=0: must be a whole number of at least 1"),
        ({"max_batch_size": 5, "max_items": 4}, "max_items=4: must be at least max_batch_size, 5"),
        ({"max_batch_size": 5, "delay": 0.0001}, "delay=0.0001: must be at least 0.001 s"),
        ({"max_batch_size": 5, "max_concurrent_batches": 0}, "max_concurrent_batches=0"),
    ],
)
def test_bad_bounds_are_refused(options: dict[str, Any], told: str) -> None:
    """G-T17."""
    with pytest.raises(ConfigError, match=told):
        ItemBatcher(lambda items: None, **options)
