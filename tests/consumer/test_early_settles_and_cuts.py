"""Faults found by random programs: state that a consumer must not lose or report wrongly.

White box: the names of strategies and results are private.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from consumer_help import P0, log_of
from consuming import PROMPT

from sluicegate import Consumer, Nak, Terminate
from sluicegate.consumer import Manual, MemoryParkStore, MemorySource, Poison
from sluicegate.consumer.handling.results import ACK
from sluicegate.sinks import MemorySink

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sluicegate import Message
    from sluicegate.consumer import ParkedRecord, Result
    from sluicegate.consumer.failures.poison import PoisonStrategy
    from sluicegate.testing import FakeClock


class Store(MemoryParkStore):
    """A park store that counts as durable and may cancel its first calls."""

    is_durable = True

    def __init__(self, *cancelled: str) -> None:
        super().__init__()
        self.cancelled = set(cancelled)

    async def park(self, group: str, key: str, records: Sequence[ParkedRecord]) -> None:
        self.check("park")
        await super().park(group, key, records)

    async def keys(self, group: str) -> frozenset[str]:
        self.check("keys")
        return await super().keys(group)

    def check(self, method: str) -> None:
        if method in self.cancelled:
            self.cancelled.remove(method)
            raise asyncio.CancelledError


@pytest.mark.parametrize("first", [ACK, Nak()])
async def test_a_settle_before_the_handler_answers_manual_counts(
    fake_clock: FakeClock, first: Result
) -> None:
    """consumer/O20: another task can settle before the handler returns."""
    log = log_of("a", "a")
    effects: list[bool] = []

    async def handle(message: Message) -> Manual:
        effects.append(message.settle(first if message.attempt == 1 else ACK))
        effects.append(message.settle(ACK))
        await fake_clock.sleep(0.1)
        return Manual()

    source = MemorySource(log, ends=True, clock=fake_clock)
    report = await Consumer(source, clock=fake_clock, retry=PROMPT).run(handle)
    assert report.counts.acked == 2
    assert log.positions[P0].offset == 2
    assert effects == [True, False] * (2 if first is ACK else 4)


async def test_a_settle_before_another_result_has_no_effect(fake_clock: FakeClock) -> None:
    """The handler's result counts unless it is `Manual`, also at its next attempt."""
    log = log_of("a")
    tries: list[int] = []

    async def handle(message: Message) -> Result:
        tries.append(message.attempt)
        if message.attempt == 1:
            message.settle(ACK)
            return Nak()
        asyncio.get_running_loop().call_later(5.0, message.settle, ACK)
        return Manual()

    source = MemorySource(log, ends=True, clock=fake_clock)
    report = await Consumer(source, clock=fake_clock, retry=PROMPT).run(handle)
    assert tries == [1, 2]
    assert report.counts.acked == 1
    assert fake_clock.now() > 5.0


async def test_a_drain_cuts_handlers_of_lost_partitions_too(fake_clock: FakeClock) -> None:
    """Otherwise they would outlive the consumer, and its report would be complete."""
    source = MemorySource(log_of("a"), clock=fake_clock)
    began, ended = asyncio.Event(), asyncio.Event()

    async def handle(message: Message) -> None:
        began.set()
        try:
            await fake_clock.sleep(1000.0)
        finally:
            ended.set()

    async with Consumer(source, clock=fake_clock, drain=1.0) as consumer:
        run = asyncio.create_task(consumer.run(handle))
        await began.wait()
        source.lose([P0])
        consumer.stop()
        report = await run
        assert ended.is_set()
    assert [each.offset for each in report.unfinished] == [0]
    assert not report.complete


async def test_a_replayed_message_that_is_cut_is_unfinished(fake_clock: FakeClock) -> None:
    """A drain that cuts a handler is not complete, although the position has already passed its
    message.
    """
    source = MemorySource(log_of("a"), clock=fake_clock)
    replayed = asyncio.Event()

    async def handle(message: Message) -> Terminate | None:
        if not message.is_unparked:
            return Terminate("bad")
        replayed.set()
        await fake_clock.sleep(1000.0)
        return None

    consumer = Consumer(
        source, clock=fake_clock, drain=1.0, name="shop", poison=Poison(parked=Store())
    )
    async with consumer:
        run = asyncio.create_task(consumer.run(handle))
        await fake_clock.sleep(1.0)
        unpark = asyncio.create_task(consumer.unpark("a"))
        await replayed.wait()
        consumer.stop()
        report = await run
        assert not (await unpark).is_done
    assert [each.offset for each in report.unfinished] == [0]
    assert not report.complete


@pytest.mark.parametrize("method", ["park", "keys"])
async def test_a_store_that_raises_a_cancellation_of_its_own_is_tried_again(
    fake_clock: FakeClock, method: str
) -> None:
    """No record is given up because of it: the record is parked before the later ones of its
    key.
    """
    log, store = log_of("a", "a", "b"), Store(method)

    async def handle(message: Message) -> Terminate | None:
        return Terminate("bad") if message.offset == 0 else None

    source = MemorySource(log, ends=True, clock=fake_clock)
    consumer = Consumer(
        source, clock=fake_clock, retry=PROMPT, name="shop", poison=Poison(parked=store)
    )
    report = await consumer.run(handle)
    assert report.counts.parked == 2
    assert log.positions[P0].offset == 3
    (key,) = await store.keys("shop")
    assert [each.offset for each in await store.first("shop", key, 5)] == [0, 1]


@pytest.mark.parametrize("poison", ["block_and_dead_letter", "skip"])
async def test_the_places_of_messages_add_up_in_every_step_of_the_loop(
    fake_clock: FakeClock, poison: PoisonStrategy
) -> None:
    """A message whose dead letter was just written is counted in one place."""
    source = MemorySource(log_of(*"aabc"), clock=fake_clock)
    sums: list[tuple[int, int]] = []

    async def handle(message: Message) -> Terminate:
        return Terminate("bad")

    sink: MemorySink[object] = MemorySink()
    consumer = Consumer(source, clock=fake_clock, poison=Poison(poison, dead_letters=sink))
    async with consumer:
        run = asyncio.create_task(consumer.run(handle))
        for _ in range(100):
            inside = consumer.stats().in_flight
            places = inside.ready + inside.running + inside.writing + inside.blocked
            sums.append((inside.messages, places + inside.waiting))
            await fake_clock.sleep(0)
        consumer.stop()
        await run
    assert [each for each in sums if each[0] != each[1]] == []
    assert max(sums) == (4, 4)
