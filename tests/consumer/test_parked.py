"""Parked keys: which records are parked, which run, and how a key returns."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest
from consumer_help import P0, P1, Poisoned, Recorder, finite, log_of, records, running
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock import ConfigError, NoSuchKey, PenstockWarning
from penstock._core.park_store import ParkedRecord
from penstock._core.source import Position, TopicPartition
from penstock.consumer import Unparked
from penstock.consumer.consumer import Consumer
from penstock.consumer.results import Nak, PoisonError, Terminate, ToDeadLetter
from penstock.letters.parked import MemoryParkStore
from penstock.sources.memory import MemoryLog, MemorySource
from penstock.testing import FakeClock, FakeSink

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock._core.source import SourceRecord
    from penstock.consumer.message import Message

MOMENT = datetime(2026, 1, 1, tzinfo=UTC)


class DurableParkStore(MemoryParkStore):
    """A store that outlives the consumers of a test and can be unavailable."""

    is_durable = True

    def __init__(self) -> None:
        super().__init__()
        self.is_down = False
        self.gates: dict[str, asyncio.Event] = {}
        """Gates that calls of these methods wait for."""
        self.calls: list[str] = []

    async def _call(self, what: str) -> None:
        self.calls.append(what)
        if what in self.gates:
            await self.gates[what].wait()
        if self.is_down:
            raise ConnectionError("the store is down")

    async def park(self, group: str, key: str, records: Sequence[ParkedRecord]) -> None:
        await self._call("park")
        await super().park(group, key, records)

    async def keys(self, group: str) -> frozenset[str]:
        await self._call("keys")
        return await super().keys(group)

    async def first(self, group: str, key: str, most: int) -> Sequence[ParkedRecord]:
        await self._call("first")
        return await super().first(group, key, most)

    async def remove(self, group: str, key: str, records: Sequence[ParkedRecord]) -> None:
        await self._call("remove")
        await super().remove(group, key, records)

    def offsets(self, key: str = "a", scope: str = "t/0 ", group: str = "billing") -> list[int]:
        """The parked offsets of a key, in order."""
        queue = self._groups[group].get(f"{scope}{key}", {})
        return [record.offset for record in queue.values()]


def parking(store: DurableParkStore, **options: Any) -> dict[str, Any]:
    return {"name": "billing", "parked": store, **options}


async def test_a_poison_message_parks_its_key_and_the_others_flow(fake_clock: FakeClock) -> None:
    """consumer/C:N4: later records of the key follow in order, and positions advance."""
    log, handler, store = log_of(*"aabaca"), Poisoned(0), DurableParkStore()
    report = await finite(log, fake_clock, **parking(store)).receive(handler)
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

    await finite(log_of("a"), fake_clock, **parking(store)).receive(handle)
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


async def test_unpark_replays_in_order_before_new_records(fake_clock: FakeClock) -> None:
    """consumer/C:N4: replay order is park order; attempts start at 1."""
    log, store, handled = log_of(*"aaab"), DurableParkStore(), []
    is_bad = True

    async def handle(message: Message) -> Terminate | None:
        handled.append((message.offset, message.attempt))
        if is_bad:
            return Terminate()
        await fake_clock.sleep(1.0)
        return None

    async with running(log, fake_clock, handle, **parking(store)) as consumer:
        is_bad = False
        handled.clear()
        unpark = asyncio.ensure_future(consumer.unpark("a"))
        await fake_clock.advance(0.5)
        log.produce("t", b"", key="a")  # during the replay of the first one
        await fake_clock.advance(1.0)
        assert handled == [(0, 1), (1, 1)]
        assert store.offsets() == [1, 2]
        assert await unpark == Unparked(3, is_done=True)
        await fake_clock.advance(2.0)
        assert handled == [(0, 1), (1, 1), (2, 1), (4, 1)]
        assert store.offsets() == []
        assert consumer.parked == ("b",)
        log.produce("t", b"", key="a")
        await fake_clock.advance(2.0)
        assert handled[-1] == (5, 1)
        assert log.positions[P0] == Position(6)
        assert consumer.stats().in_flight.messages == 0


async def test_a_replayed_message_that_fails_again_stays_parked(fake_clock: FakeClock) -> None:
    """consumer/C:N4: the records behind it stay parked, and new records follow behind them."""
    log, handler, store = log_of(*"aaa"), Poisoned(0), DurableParkStore()
    async with running(log, fake_clock, handler, **parking(store)) as consumer:
        handler.bad = {1}
        unparked = await consumer.unpark("a")
        assert (unparked.handled, unparked.is_done) == (1, False)
        assert isinstance(unparked.error, PoisonError)
        log.produce("t", b"", key="a")
        await fake_clock.advance(1.0)
        assert handler.offsets == [0, 0, 1]
        assert store.offsets() == [1, 2, 3]
        handler.bad = set()
        assert await consumer.unpark("a") == Unparked(3, is_done=True)
        assert handler.offsets == [0, 0, 1, 1, 2, 3]
        assert consumer.parked == ()


async def test_what_arrives_during_a_replay_that_fails_is_parked_behind_it(
    fake_clock: FakeClock,
) -> None:
    """consumer/C:N4."""
    log, handler, store = log_of(*"aa"), Poisoned(0), DurableParkStore()

    async def handle(message: Message) -> Terminate | None:
        result = await handler(message)
        await fake_clock.sleep(1.0)
        return result

    async with running(log, fake_clock, handle, **parking(store)) as consumer:
        handler.bad = {1}
        unpark = asyncio.ensure_future(consumer.unpark("a"))
        await fake_clock.advance(0.5)
        log.produce("t", b"", key="a")
        assert (await unpark).is_done is False
        await fake_clock.advance(1.0)
        assert store.offsets() == [1, 2]
        assert log.positions[P0] == Position(3)


async def test_an_unpark_waits_for_a_record_that_is_being_parked(fake_clock: FakeClock) -> None:
    log, handler, store = log_of("a"), Poisoned(0), DurableParkStore()
    async with running(log, fake_clock, handler, **parking(store)) as consumer:
        handler.bad = set()
        store.gates["park"] = asyncio.Event()
        log.produce("t", b"", key="a")
        await fake_clock.run_until_idle()
        unpark = asyncio.ensure_future(consumer.unpark("a"))
        await fake_clock.advance(1.0)
        assert handler.offsets == [0]
        store.gates["park"].set()
        assert await unpark == Unparked(2, is_done=True)
        assert handler.offsets == [0, 0, 1]


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


async def test_a_replayed_message_is_retried_before_those_behind_it(fake_clock: FakeClock) -> None:
    """Also with `redeliver`: the replay keeps the order of its key."""
    log, handler, store = log_of(*"aa"), Poisoned(0), DurableParkStore()
    tries = []

    async def handle(message: Message) -> Nak | Terminate | None:
        if handler.bad:
            return await handler(message)
        tries.append((message.offset, message.attempt))
        return Nak(1.0) if message.offset == 0 and message.attempt < 3 else None

    options = parking(store, on_nak="redeliver")
    async with running(log, fake_clock, handle, **options) as consumer:
        handler.bad = set()
        assert await consumer.unpark("a") == Unparked(2, is_done=True)
        claim = consumer._open().claims.get(P0)
        assert claim is not None
        assert claim.attempts == {}
    assert tries == [(0, 1), (0, 2), (0, 3), (1, 1)]


async def test_batches_park_and_replay_in_order(fake_clock: FakeClock) -> None:
    """consumer/C:N4, consumer/C:Ba4: a replayed message is the only one of its key in a batch."""
    log, store, batches = log_of(*"aabab"), DurableParkStore(), []
    bad = {1}

    async def handle(messages: list[Message]) -> list[Terminate | None]:
        batches.append([message.offset for message in messages])
        return [Terminate() if message.offset in bad else None for message in messages]

    consumer = Consumer(MemorySource(log, clock=fake_clock), clock=fake_clock, **parking(store))
    async with consumer, asyncio.TaskGroup() as tasks:
        run = tasks.create_task(consumer.run_batch(handle, size=5, max_wait=0.1))
        await fake_clock.advance(1.0)
        assert batches == [[0, 1, 3, 2, 4]]
        assert store.offsets() == [1, 3]
        bad.clear()
        log.produce("t", b"", key="a")
        await fake_clock.advance(1.0)
        assert await consumer.unpark("a") == Unparked(3, is_done=True)
        assert batches[1:] == [[1], [3], [5]]
        assert log.positions[P0] == Position(6)
        consumer.stop()
        await run


async def test_a_replayed_message_may_go_to_the_dead_letters(fake_clock: FakeClock) -> None:
    """It is removed from the store once its letter is written."""
    log, store, letters = log_of(*"aa"), DurableParkStore(), FakeSink[Any]()
    result: Any = Terminate()

    async def handle(message: Message) -> Any:
        return result

    options = parking(store, dead_letters=letters)
    async with running(log, fake_clock, handle, **options) as consumer:
        result = ToDeadLetter("too old")
        assert await consumer.unpark("a") == Unparked(2, is_done=True)
        assert [letter.message for letter in letters.applied] == ["too old"] * 2
        assert store.offsets() == []
        assert consumer.stats().counts.dead_lettered == 2


async def test_the_keys_are_read_once_for_all_partitions_of_an_assignment(
    fake_clock: FakeClock,
) -> None:
    """A log of streams has 256 partitions."""
    log, store = MemoryLog(), DurableParkStore()
    for partition in range(50):
        log.produce("t", b"", key="a", partition=partition)
    await finite(log, fake_clock, **parking(store)).receive(handler := Recorder())
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
    assert handled == [0, 1]


@pytest.mark.parametrize("key", ["a", b"\x00\xff", 7, None, ":a", "a b", 1.5, ("x", 1)])
async def test_parked_keys_are_read_back_at_assignment(fake_clock: FakeClock, key: Any) -> None:
    """consumer/C:N4: after a restart a parked key does not run, whatever its type."""
    log, store = log_of(key, key, "other"), DurableParkStore()
    options = parking(store, key=lambda record: record.key)
    await finite(log, fake_clock, **options).receive(Poisoned(0))
    for each in (key, "other"):
        log.produce("t", b"", key=each)
    await finite(log, fake_clock, **options).receive(again := Recorder())
    assert again.offsets == [4]
    async with running(log, fake_clock, again, **options) as consumer:
        assert consumer.parked == (key,)
        assert await consumer.unpark(key) == Unparked(3, is_done=True)
    assert again.offsets == [4, 0, 1, 3]


async def test_a_record_without_a_usable_key_is_parked_alone(fake_clock: FakeClock) -> None:
    log, store = MemoryLog(records([[], "a", "a"])), DurableParkStore()
    await finite(log, fake_clock, **parking(store)).receive(handler := Recorder())
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

    options = parking(store, size_of=size_of)
    for _ in range(2):
        await finite(log, fake_clock, **options).receive(handler)
        log.produce("t", b"", key="a")
    assert handler.offsets == [1, 2]


async def test_nothing_is_parked_twice_after_a_crash(fake_clock: FakeClock) -> None:
    """consumer/C:N4: a record that was parked but not committed is in the store once."""
    log, store = log_of(*"aab"), DurableParkStore()
    await finite(log, fake_clock, **parking(store)).receive(Poisoned(0))
    log.positions.clear()
    await finite(log, fake_clock, **parking(store)).receive(again := Recorder())
    assert again.offsets == [2]
    assert store.offsets() == [0, 1]
    assert log.positions[P0] == Position(3)


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


async def test_unpark_waits_until_the_parked_keys_are_known(fake_clock: FakeClock) -> None:
    log, store, handler = log_of("a"), DurableParkStore(), Poisoned(0)
    await finite(log, fake_clock, **parking(store)).receive(handler)
    handler.bad, store.is_down = set(), True
    consumer = Consumer(MemorySource(log, clock=fake_clock), clock=fake_clock, **parking(store))
    async with consumer, asyncio.TaskGroup() as tasks:
        run = tasks.create_task(consumer.run(handler))
        unpark = tasks.create_task(consumer.unpark("a"))
        await fake_clock.advance(5.0)
        assert not unpark.done()
        store.is_down = False
        assert await unpark == Unparked(1, is_done=True)
        consumer.stop()
        await run


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


async def test_a_cancelled_unpark_keeps_the_rest_parked(fake_clock: FakeClock) -> None:
    log, store, handler = log_of(*"aaa"), DurableParkStore(), Poisoned(0)

    async def handle(message: Message) -> Any:
        result = await handler(message)
        await fake_clock.sleep(0.0 if result else 1.0)
        return result

    async with running(log, fake_clock, handle, **parking(store)) as consumer:
        handler.bad = set()
        unpark = asyncio.ensure_future(consumer.unpark("a"))
        await fake_clock.advance(0.5)
        unpark.cancel()
        log.produce("t", b"", key="a")
        await fake_clock.advance(5.0)
        assert handler.offsets == [0, 0]
        assert store.offsets() == [1, 2, 3]
        assert await consumer.unpark("a") == Unparked(3, is_done=True)
        assert handler.offsets == [0, 0, 1, 2, 3]


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
    consumer = Consumer(source, clock=fake_clock, **parking(store, key_scope="topic"))
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


async def test_a_scope_of_the_group_parks_the_key_of_every_partition(fake_clock: FakeClock) -> None:
    """consumer/C:O4, consumer/C:N4."""
    log = MemoryLog([*records("a"), *records("ba", partition=1)])
    store, handler = DurableParkStore(), Recorder()

    async def handle(message: Message) -> Terminate | None:
        await handler(message)
        return Terminate() if message.key == "a" else None

    options = parking(store, key_scope="group")
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


async def test_an_unparked_key_that_is_not_parked_is_an_error(fake_clock: FakeClock) -> None:
    store = DurableParkStore()
    async with running(log_of("a"), fake_clock, Poisoned(0), **parking(store)) as consumer:
        with pytest.raises(NoSuchKey, match=r"^key 'b' is not parked; parked: 'a'$"):
            await consumer.unpark("b")
    async with running(log_of("a"), fake_clock, Poisoned(0)) as consumer:
        with pytest.raises(ConfigError, match="consumer has no parked=, so no key is parked"):
            await consumer.unpark("a")


async def test_a_store_that_cannot_be_read_raises_from_unpark(fake_clock: FakeClock) -> None:
    store, handler = DurableParkStore(), Poisoned(0)
    async with running(log_of("a"), fake_clock, handler, **parking(store)) as consumer:
        handler.bad, store.is_down = set(), True
        with pytest.raises(ConnectionError, match="the store is down"):
            await consumer.unpark("a")
        store.is_down = False
        assert (await consumer.unpark("a")).is_done


def test_the_settings_of_a_park_store_are_checked(fake_clock: FakeClock) -> None:
    source = MemorySource(MemoryLog(), clock=fake_clock)
    with pytest.warns(PenstockWarning, match="loses parked messages with this process") as told:
        Consumer(source, parked=MemoryParkStore())
    assert len(told) == 1
    with pytest.raises(ConfigError, match="name='consumer': must be set with parked="):
        Consumer(source, parked=DurableParkStore())
    with pytest.raises(ConfigError, match="poison='park_key': needs parked="):
        Consumer(source, poison="park_key")
    with pytest.raises(ConfigError, match=r"parked=.* has no effect with poison='skip'"):
        Consumer(source, name="x", poison="skip", parked=DurableParkStore())


def check_order(keys: list[str], bad: set[int], unparks: list[tuple[str, bool]]) -> None:
    """Handle records of these keys, where `bad` ones fail once, with restarts between unparks."""
    clock, store, log = FakeClock(), DurableParkStore(), MemoryLog(records(keys))
    settled: defaultdict[str, list[int]] = defaultdict(list)
    failing = set(bad)

    async def handle(message: Message) -> Terminate | None:
        await clock.sleep(0.01 * (message.offset % 3))
        if message.offset in failing:
            failing.discard(message.offset)
            return Terminate()
        settled[message.key].append(message.offset)
        return None

    async def program() -> None:
        for key, is_restart in [*unparks, *[(key, True) for key in "abc" * 7]]:
            if is_restart:
                await finite(log, clock, **parking(store)).receive(handle)
            async with running(log, clock, handle, **parking(store)) as consumer:
                if key in consumer.parked:
                    log.produce("t", b"", key=key)
                    await consumer.unpark(key)

    try:
        clock.run(program())
    finally:
        clock.close()
    for key in "abc":
        assert settled[key] == [
            record.offset for record in log.records[TopicPartition("t", 0)] if record.key == key
        ]
        assert store.offsets(key) == []


HISTORIES = {
    "keys": st.lists(st.sampled_from("abc"), min_size=1, max_size=20),
    "bad": st.sets(st.integers(0, 19), max_size=6),
    "unparks": st.lists(st.tuples(st.sampled_from("abc"), st.booleans()), max_size=6),
}


@settings(max_examples=10, deadline=None)
@given(**HISTORIES)
def test_every_record_is_handled_once_and_in_order(
    keys: list[str], bad: set[int], unparks: list[tuple[str, bool]]
) -> None:
    """consumer/C:N4: across parking, failed replays, restarts and new records."""
    check_order(keys, bad, unparks)


@pytest.mark.soak
@settings(max_examples=500, deadline=None)
@given(**HISTORIES)
def test_many_histories_are_handled_once_and_in_order(
    keys: list[str], bad: set[int], unparks: list[tuple[str, bool]]
) -> None:
    """consumer/C:N4."""
    check_order(keys, bad, unparks)
