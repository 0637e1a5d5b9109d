"""`unpark`: a key returns, and its parked messages are handled in order before new ones.

White box: the type of `unpark`'s result, which no package exports.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import pytest
from consumer_help import P0, Poisoned, finite, log_of, records, running
from hypothesis import given, settings
from hypothesis import strategies as st
from park_help import DurableParkStore, parking
from tests.properties import examples

from sluicegate import ConfigError, Consumer, Nak, Terminate, ToDeadLetter
from sluicegate.consumer import MemoryLog, MemorySource, PoisonError, Position, TopicPartition
from sluicegate.consumer.failures.parking import Unparked
from sluicegate.errors import NoSuchKey
from sluicegate.testing import FakeClock, FakeSink

if TYPE_CHECKING:
    from sluicegate import Message


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
        assert batches == [[0, 1, 2, 3, 4]]
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


async def test_unpark_waits_until_the_parked_keys_are_known(fake_clock: FakeClock) -> None:
    log, store, handler = log_of("a"), DurableParkStore(), Poisoned(0)
    await finite(log, fake_clock, **parking(store)).run(handler)
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


async def test_an_unparked_key_that_is_not_parked_is_an_error(fake_clock: FakeClock) -> None:
    store = DurableParkStore()
    async with running(log_of("a"), fake_clock, Poisoned(0), **parking(store)) as consumer:
        with pytest.raises(NoSuchKey, match=r"^key 'b' is not parked; parked: 'a'$"):
            await consumer.unpark("b")
    async with running(log_of("a"), fake_clock, Poisoned(0)) as consumer:
        with pytest.raises(
            ConfigError, match=r"consumer has no Poison\(parked=...\), so no key is parked"
        ):
            await consumer.unpark("a")


async def test_a_store_that_cannot_be_read_raises_from_unpark(fake_clock: FakeClock) -> None:
    store, handler = DurableParkStore(), Poisoned(0)
    async with running(log_of("a"), fake_clock, handler, **parking(store)) as consumer:
        handler.bad, store.is_down = set(), True
        with pytest.raises(ConnectionError, match="the store is down"):
            await consumer.unpark("a")
        store.is_down = False
        assert (await consumer.unpark("a")).is_done


# -- random histories ------------------------------------------------------------------------------


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
                await finite(log, clock, **parking(store)).run(handle)
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


@examples(10, long=100)
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
