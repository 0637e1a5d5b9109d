"""Parking: which records of a key are parked, which run, and what a store that is down delays.

White box: the type of `unpark`'s result, which no package exports.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from consumer_help import P0, P1, Poisoned, Recorder, finite, log_of, records, running
from park_help import DurableParkStore, parking

from sluicegate import ConfigError, Consumer, Nak, Terminate
from sluicegate.consumer import (
    InFlight,
    Keys,
    MemoryLog,
    MemoryParkStore,
    MemorySource,
    Poison,
    Position,
)
from sluicegate.consumer.failures.parking import Unparked
from sluicegate.errors import NoSuchKey, SluicegateWarning
from sluicegate.testing import FakeClock

if TYPE_CHECKING:
    from sluicegate import Message
    from sluicegate.consumer import SourceRecord


async def test_a_poison_message_parks_its_key_and_the_others_flow(fake_clock: FakeClock) -> None:
    """consumer/C:N4: later records of the key follow in order, and positions advance."""
    log, handler, store = log_of(*"aabaca"), Poisoned(0), DurableParkStore()
    report = await finite(log, fake_clock, **parking(store)).run(handler)
    assert handler.offsets == [0, 2, 4]
    assert store.offsets() == [0, 1, 3, 5]
    assert log.positions[P0] == Position(6)
    assert report.counts.parked == 4
    assert report.counts.acked == 2
    assert report.blocked == ()
    (poison, behind, *_) = await store.first("billing", "t/0 a", 9)
    assert (poison.reason, poison.error_type, poison.is_poison) == ("bad 0", "PoisonError", True)
    assert (behind.error_type, behind.is_poison, behind.attempts) == ("", False, 0)


async def test_a_parked_message_tells_its_attempts(fake_clock: FakeClock) -> None:
    """O-T19: the attempts equal the maximum, with the class of the error."""
    store = DurableParkStore()

    async def handle(message: Message) -> Nak:
        return Nak(0.1)

    await finite(log_of("a"), fake_clock, **parking(store)).run(handle)
    (record,) = await store.first("billing", "t/0 a", 1)
    assert (record.attempts, record.error_type) == (5, "TransientError")


async def test_later_records_of_a_parked_key_are_parked_as_they_arrive(
    fake_clock: FakeClock,
) -> None:
    """consumer/C:N4: no record of a parked key runs until `unpark`."""
    log, handler, store = log_of("a"), Poisoned(0), DurableParkStore()
    async with running(log, fake_clock, handler, **parking(store)) as consumer:
        assert consumer.parked == ("a",)
        for key in "aba":
            log.produce("t", b"", key=key)
        await fake_clock.advance(2.0)
        assert handler.offsets == [0, 2]
        assert store.offsets() == [0, 1, 3]
        assert log.positions[P0] == Position(4)


async def test_a_message_that_was_passed_is_parked_when_its_backoff_ends(
    fake_clock: FakeClock,
) -> None:
    """With `redeliver`, a key can be parked while an earlier message of it backs off."""
    log, store, handled = log_of(*"aa"), DurableParkStore(), []

    async def handle(message: Message) -> Nak | Terminate:
        handled.append(message.offset)
        return Terminate() if message.offset else Nak(5.0)

    options = parking(store, on_nak="redeliver")
    async with running(log, fake_clock, handle, **options):
        assert store.offsets() == [1]
        await fake_clock.advance(5.0)
        assert store.offsets() == [1, 0]
        assert handled == [0, 1]
        assert log.positions[P0] == Position(2)


async def test_a_record_without_a_usable_key_is_parked_alone(fake_clock: FakeClock) -> None:
    log, store = MemoryLog(records([[], "a", "a"])), DurableParkStore()
    await finite(log, fake_clock, **parking(store)).run(handler := Recorder())
    assert handler.offsets == [1, 2]
    async with running(log, fake_clock, handler, **parking(store)) as consumer:
        (key,) = consumer.parked
        assert key == ("t", 0, 0)
        assert await consumer.unpark(key) == Unparked(1, is_done=True)
    assert handler.offsets == [1, 2, 0]


async def test_a_record_without_a_usable_size_does_not_park_its_key(fake_clock: FakeClock) -> None:
    """It is parked on its own, also after a restart, although its key is known."""
    log, store, handler = log_of(*"aa"), DurableParkStore(), Recorder()

    def size_of(record: SourceRecord) -> int:
        return 1 // record.offset

    options = parking(store, in_flight=InFlight(size_of=size_of))
    for _ in range(2):
        await finite(log, fake_clock, **options).run(handler)
        log.produce("t", b"", key="a")
    assert handler.offsets == [1, 2]


async def test_nothing_is_parked_twice_after_a_crash(fake_clock: FakeClock) -> None:
    """consumer/C:N4: a record that was parked but not committed is in the store once."""
    log, store = log_of(*"aab"), DurableParkStore()
    await finite(log, fake_clock, **parking(store)).run(Poisoned(0))
    log.positions.clear()
    await finite(log, fake_clock, **parking(store)).run(again := Recorder())
    assert again.offsets == [2]
    assert store.offsets() == [0, 1]
    assert log.positions[P0] == Position(3)


async def test_a_scope_of_the_group_parks_the_key_of_every_partition(fake_clock: FakeClock) -> None:
    """consumer/C:O4, consumer/C:N4."""
    log = MemoryLog([*records("a"), *records("ba", partition=1)])
    store, handler = DurableParkStore(), Recorder()

    async def handle(message: Message) -> Terminate | None:
        await handler(message)
        return Terminate() if message.key == "a" else None

    options = parking(store, key=Keys(scope="group"))
    async with running(log, fake_clock, handle, **options) as consumer:
        assert [message.key for message in handler.handled].count("a") == 1
        assert len(store.offsets(scope="")) == 2
        assert consumer.parked == ("a",)


async def test_the_same_key_of_another_partition_is_a_stranger(fake_clock: FakeClock) -> None:
    log = MemoryLog([*records("aa"), *records("ba", partition=1)])
    store, handler = DurableParkStore(), Poisoned(0)
    async with running(log, fake_clock, handler, **parking(store)) as consumer:
        assert store.offsets() == [0, 1]
        assert store.offsets(scope="t/1 ") == []
        assert store.offsets("b", scope="t/1 ") == [0]
        assert set(consumer.parked) == {"a", "b"}
        handler.bad = set()
        with pytest.raises(NoSuchKey):
            await consumer.unpark("a", partition=P1)
        assert (await consumer.unpark("a", partition=P0)).is_done


# -- a store that is down, and the settings of a store ---------------------------------------------


async def test_while_the_store_is_down_the_message_stays_and_other_keys_go_on(
    fake_clock: FakeClock,
) -> None:
    """O-T20: a failure to park keeps the message and the order of its key."""
    log, handler, store = log_of(*"aab"), Poisoned(0), DurableParkStore()
    consumer = Consumer(MemorySource(log, clock=fake_clock), clock=fake_clock, **parking(store))
    async with consumer, asyncio.TaskGroup() as tasks:
        run = tasks.create_task(consumer.run(handler))
        await fake_clock.run_until_idle()
        store.calls.clear()
        assert store.offsets() == [0, 1]
        store.is_down = True
        for key in "aac":
            log.produce("t", b"", key=key)
        await fake_clock.advance(30.0)
        assert handler.offsets == [0, 2, 5]
        assert len(store.calls) > 3
        assert log.positions[P0].offset == 3
        store.is_down = False
        await fake_clock.advance(60.0)
        assert store.offsets() == [0, 1, 3, 4]
        assert log.positions[P0] == Position(6)
        consumer.stop()
        assert (await run).complete


async def test_a_drain_leaves_what_cannot_be_parked_to_the_next_owner(
    fake_clock: FakeClock,
) -> None:
    log, handler, store = log_of(*"aab"), Poisoned(0), DurableParkStore()
    consumer = Consumer(MemorySource(log, clock=fake_clock), clock=fake_clock, **parking(store))
    async with consumer, asyncio.TaskGroup() as tasks:
        run = tasks.create_task(consumer.run(handler))
        await fake_clock.run_until_idle()
        store.gates["park"] = asyncio.Event()
        log.produce("t", b"", key="a")
        await fake_clock.advance(2.0)
        consumer.stop()
        report = await run
    assert [each.offset for each in report.unfinished] == [3]
    assert store.offsets() == [0, 1]
    assert log.positions[P0].offset == 3


def test_the_settings_of_a_park_store_are_checked(fake_clock: FakeClock) -> None:
    source = MemorySource(MemoryLog(), clock=fake_clock)
    with pytest.warns(SluicegateWarning, match="loses parked messages with this process") as told:
        Consumer(source, poison=Poison(parked=MemoryParkStore()))
    assert len(told) == 1
    with pytest.raises(ConfigError, match=r"name='consumer': must be set with Poison\(parked="):
        Consumer(source, poison=Poison(parked=DurableParkStore()))
    with pytest.raises(ConfigError, match=r"poison='park_key': needs Poison\(parked="):
        Consumer(source, poison="park_key")
    with pytest.raises(ConfigError, match=r"parked=.* has no effect with strategy='skip'"):
        Consumer(source, name="x", poison=Poison("skip", parked=DurableParkStore()))
