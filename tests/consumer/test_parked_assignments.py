"""Parked keys and assignments: they are read before a partition is fetched from, and a replay ends
when its partition is revoked or lost.

White box: the type of `unpark`'s result, which no package exports.
"""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest
from consumer_help import P0, P1, Poisoned, Recorder, finite, log_of, records, running
from park_help import DurableParkStore, parking

from sluicegate import Consumer, Nak, Terminate
from sluicegate.consumer import Keys, MemoryLog, MemorySource, ParkedRecord, Position
from sluicegate.consumer.failures.parking import Unparked
from sluicegate.testing import FakeClock

if TYPE_CHECKING:
    from sluicegate import Message

# -- the keys of an assigned partition -------------------------------------------------------------


async def test_the_keys_are_read_once_for_all_partitions_of_an_assignment(
    fake_clock: FakeClock,
) -> None:
    """A log of streams has 256 partitions."""
    log, store = MemoryLog(), DurableParkStore()
    for partition in range(50):
        log.produce("t", b"", key="a", partition=partition)
    await finite(log, fake_clock, **parking(store)).run(handler := Recorder())
    assert len(handler.offsets) == 50
    assert store.calls == ["keys"]


async def test_a_partition_assigned_while_parked_keys_are_read_is_fetched_from(
    fake_clock: FakeClock,
) -> None:
    """consumer/C:N4: its keys are read next, without a further event."""
    log, handler, store = MemoryLog(), Recorder(), DurableParkStore()
    for partition in (P0, P1):
        log.produce("t", b"", key="a", partition=partition.partition)
    source = MemorySource(log, partitions=[P0], clock=fake_clock)
    gate = store.gates["keys"] = asyncio.Event()
    consumer = Consumer(source, clock=fake_clock, **parking(store))
    async with consumer, asyncio.TaskGroup() as tasks:
        run = tasks.create_task(consumer.run(handler))
        await fake_clock.advance(2.0)
        source.assign([P1])
        await fake_clock.advance(2.0)
        gate.set()
        await fake_clock.advance(2.0)
        handled = [message.partition for message in handler.handled]
        consumer.stop()
        await run
    assert store.calls == ["keys", "keys"]
    assert sorted(handled) == [0, 1]


@pytest.mark.parametrize("key", ["a", b"\x00\xff", 7, None, ":a", "a b", 1.5, ("x", 1)])
async def test_parked_keys_are_read_back_at_assignment(fake_clock: FakeClock, key: Any) -> None:
    """consumer/C:N4: after a restart a parked key does not run, whatever its type."""
    log, store = log_of(key, key, "other"), DurableParkStore()
    options = parking(store, key=lambda record: record.key)
    await finite(log, fake_clock, **options).run(Poisoned(0))
    for each in (key, "other"):
        log.produce("t", b"", key=each)
    await finite(log, fake_clock, **options).run(again := Recorder())
    assert again.offsets == [4]
    async with running(log, fake_clock, again, **options) as consumer:
        assert consumer.parked == (key,)
        assert await consumer.unpark(key) == Unparked(3, is_done=True)
    assert again.offsets == [4, 0, 1, 3]


async def test_nothing_is_fetched_before_the_parked_keys_are_known(fake_clock: FakeClock) -> None:
    """consumer/C:N4: a store that cannot be read delays the partition and is retried."""
    log, store, handler = log_of(*"ab"), DurableParkStore(), Poisoned(0)
    store.is_down = True
    consumer = finite(log, fake_clock, **parking(store))
    async with consumer, asyncio.TaskGroup() as tasks:
        run = tasks.create_task(consumer.run(handler))
        await fake_clock.advance(10.0)
        assert handler.offsets == []
        assert store.calls.count("keys") > 3
        store.is_down = False
        await run
    assert handler.offsets == [0, 1]


async def finite_parks_everything(
    source: MemorySource, store: DurableParkStore, clock: FakeClock
) -> None:
    """Let another process park all records of the log."""
    consumer = Consumer(source, clock=clock, **parking(store))
    async with consumer, asyncio.TaskGroup() as tasks:
        run = tasks.create_task(consumer.run(Poisoned(*range(9))))
        await clock.advance(1.0)
        consumer.stop()
        await run


async def test_a_key_that_is_read_back_waits_for_its_older_turn(fake_clock: FakeClock) -> None:
    """consumer/C:N3: the handler of a lost claim still runs when the partition returns."""
    log, store, gate = log_of(*"aa"), DurableParkStore(), asyncio.Event()
    started = []

    async def handle(message: Message) -> None:
        started.append(message.offset)
        await gate.wait()

    source = MemorySource(log, clock=fake_clock)
    consumer = Consumer(source, clock=fake_clock, **parking(store))
    async with consumer, asyncio.TaskGroup() as tasks:
        run = tasks.create_task(consumer.run(handle))
        await fake_clock.advance(1.0)
        source.lose([P0])
        other = MemorySource(log, clock=fake_clock)
        await finite_parks_everything(other, store, fake_clock)
        source.assign([P0])
        log.produce("t", b"", key="a")
        await fake_clock.advance(1.0)
        assert store.offsets() == [0, 1]
        gate.set()
        await fake_clock.advance(1.0)
        assert started == [0]
        assert store.offsets() == [0, 1, 2]
        consumer.stop()
        await run


MOMENT = datetime(2026, 1, 1, tzinfo=UTC)


async def test_a_key_of_a_shared_scope_waits_for_the_turn_of_another_partition(
    fake_clock: FakeClock,
) -> None:
    """consumer/C:O4, consumer/C:N3: the turn ends with an acknowledgement."""
    log, store, gate = (
        MemoryLog(records("aa"), partitions=[P1]),
        DurableParkStore(),
        asyncio.Event(),
    )
    started = []

    async def handle(message: Message) -> None:
        started.append(message.offset)
        await gate.wait()

    poison = ParkedRecord(
        topic="t", partition=1, offset=7, key="a", value=b"", reason="", parked_at=MOMENT
    )
    source = MemorySource(log, partitions=[P0], clock=fake_clock)
    consumer = Consumer(source, clock=fake_clock, **parking(store, key=Keys(scope="topic")))
    async with consumer, asyncio.TaskGroup() as tasks:
        run = tasks.create_task(consumer.run(handle))
        await fake_clock.advance(1.0)
        await store.park("billing", "t a", [poison])
        source.assign([P1])
        await fake_clock.advance(1.0)
        gate.set()
        await fake_clock.advance(1.0)
        assert started == [0]
        assert store.offsets(scope="t ") == [7, 1]
        consumer.stop()
        await run


# -- the end of an assignment during a replay ------------------------------------------------------


async def test_a_revoke_in_the_middle_of_a_replay_loses_nothing(fake_clock: FakeClock) -> None:
    """consumer/C:N4: unhandled records stay parked, in order, for the next owner."""
    log, store, handled = log_of(*"aaaa"), DurableParkStore(), []
    is_bad = True

    async def handle(message: Message) -> Terminate | None:
        if is_bad:
            return Terminate()
        await fake_clock.sleep(1.0)
        handled.append(message.offset)
        return None

    first = MemorySource(log, clock=fake_clock)
    second = MemorySource(log, partitions=[], clock=fake_clock)
    one = Consumer(first, clock=fake_clock, **parking(store))
    other = Consumer(second, clock=fake_clock, **parking(store))
    async with one, other, asyncio.TaskGroup() as tasks:
        runs = [tasks.create_task(each.run(handle)) for each in (one, other)]
        await fake_clock.advance(1.0)
        is_bad = False
        unpark = tasks.create_task(one.unpark("a"))
        await fake_clock.advance(1.5)  # while the second one is handled
        log.produce("t", b"", key="a")
        await first.give([P0], second)
        assert await unpark == Unparked(2, is_done=False)
        assert handled == [0, 1]
        assert one.parked == ()
        await fake_clock.advance(1.0)
        assert other.parked == ("a",)
        assert store.offsets() == [2, 3, 4]
        assert await other.unpark("a") == Unparked(3, is_done=True)
        assert handled == [0, 1, 2, 3, 4]
        one.stop()
        other.stop()
        await asyncio.gather(*runs)
    assert log.positions[P0] == Position(5)


async def test_a_lost_claim_ends_its_replay(fake_clock: FakeClock) -> None:
    """A message that waits for its next attempt stays parked, and the caller gets a result."""
    log, store, handler = log_of("a"), DurableParkStore(), Poisoned(0)

    async def handle(message: Message) -> Any:
        return await handler(message) if handler.bad else Nak(60.0)

    source = MemorySource(log, clock=fake_clock)
    consumer = Consumer(source, clock=fake_clock, **parking(store))
    async with consumer, asyncio.TaskGroup() as tasks:
        run = tasks.create_task(consumer.run(handle))
        await fake_clock.advance(1.0)
        handler.bad = set()
        unpark = tasks.create_task(consumer.unpark("a"))
        await fake_clock.advance(1.0)
        source.lose([P0])
        assert await unpark == Unparked(0, is_done=False)
        assert consumer.parked == ()
        consumer.stop()
        await run
    assert store.offsets() == [0]


async def test_a_replay_ends_with_the_claim_under_which_it_began(fake_clock: FakeClock) -> None:
    """The partition is lost and returns while the store is read."""
    log, store, gate = log_of(*"ab"), DurableParkStore(), asyncio.Event()
    handler = Poisoned(0)

    async def handle(message: Message) -> Terminate | None:
        if message.key == "b":
            await gate.wait()
        return await handler(message)

    source = MemorySource(log, clock=fake_clock)
    consumer = Consumer(source, clock=fake_clock, **parking(store))
    async with consumer, asyncio.TaskGroup() as tasks:
        run = tasks.create_task(consumer.run(handle))
        await fake_clock.advance(1.0)
        handler.bad = set()
        store.gates["first"] = asyncio.Event()
        unpark = tasks.create_task(consumer.unpark("a"))
        await fake_clock.advance(1.0)
        source.lose([P0])
        source.assign([P0])
        await fake_clock.advance(1.0)
        store.gates["first"].set()
        assert await unpark == Unparked(0, is_done=False)
        assert consumer.parked == ("a",)
        assert await consumer.unpark("a") == Unparked(1, is_done=True)
        gate.set()
        consumer.stop()
        await run
