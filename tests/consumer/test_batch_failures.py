"""Batches that are not fully acknowledged: the prefix rule, wrong result counts, exceptions."""

from __future__ import annotations

import asyncio
import logging
import math
from typing import TYPE_CHECKING, Any

import pytest
from batch_help import Batches
from consumer_help import P0, P1, finite, log_of, records
from hypothesis import given
from hypothesis import strategies as st
from tests.properties import examples

from sluicegate import Ack, Consumer, Nak, RetryPolicy, Terminate, ToDeadLetter, UnavailableError
from sluicegate.consumer import (
    Keys,
    Manual,
    MemoryLog,
    MemoryParkStore,
    MemorySource,
    Poison,
    Position,
)
from sluicegate.testing import FakeClock

if TYPE_CHECKING:
    from collections.abc import Callable

    from sluicegate import Message


def once(offset: int, result: object) -> Callable[[list[Message]], object]:
    """Return this result for one message the first time; acknowledge all others."""
    pending = {offset}

    def answer(batch: list[Message]) -> object:
        results: list[object] = []
        for message in batch:
            is_it = message.offset in pending
            pending.discard(message.offset)
            results.append(result if is_it else Ack())
        return results

    return answer


def refusing(
    *offsets: int, error: type[BaseException] = ValueError
) -> Callable[[list[Message]], None]:
    """Raise for every batch that contains one of these messages."""

    def answer(batch: list[Message]) -> None:
        found = [message.offset for message in batch if message.offset in offsets]
        if found:
            raise error(f"{found}")

    return answer


def skipping(log: MemoryLog, clock: FakeClock, **options: Any) -> Consumer:
    """A consumer that skips poison at its first failure."""
    options = {"poison": "skip", "retry": RetryPolicy(attempts=1, unlisted_attempts=1)} | options
    return finite(log, clock, **options)


# -- results --------------------------------------------------------------------------------------


async def test_every_message_has_the_result_at_its_position(fake_clock: FakeClock) -> None:
    """consumer/O20, O-T11, consumer/C:Ba1: one result per message, and exact counts."""
    handler = Batches(lambda batch: [Ack(), Nak(1.0), Terminate("no")][: len(batch)])
    log = log_of(*"abc")
    report = await finite(log, fake_clock, poison="skip").run_batch(handler)
    assert handler.offsets == [[0, 1, 2], [1]]
    counts = report.counts
    assert (counts.acked, counts.naks, counts.terminated) == (2, 1, 1)
    assert log.positions[P0] == Position(3)


async def test_a_nak_holds_back_what_follows_it_in_its_key(fake_clock: FakeClock) -> None:
    """consumer/C:Ba4: the acknowledgement of offset 2 does not count; the one of offset 3, of
    another key, does.
    """
    log, handler = log_of("a", "a", "a", "b"), Batches(once(1, Nak(1.0)))
    report = await finite(log, fake_clock).run_batch(handler)
    assert handler.offsets == [[0, 1, 2, 3], [1, 2]]
    assert handler.attempts == [[1, 1, 1, 1], [2, 1]]
    assert (report.counts.acked, report.counts.naks) == (4, 1)


async def test_a_redelivered_message_joins_a_batch_of_its_key(fake_clock: FakeClock) -> None:
    """With `on_nak="redeliver"` the message loses its place in the order, as if it had just
    arrived.
    """
    log, handler = log_of(*"ab"), Batches(once(0, Nak(1.0)))
    source = MemorySource(log, clock=fake_clock)
    consumer = Consumer(source, clock=fake_clock, on_nak="redeliver")
    running = asyncio.create_task(consumer.run_batch(handler, size=2, max_wait=None))
    await fake_clock.advance(0.5)
    log.produce("t", b"", key="a")
    await fake_clock.advance(10.0)
    assert handler.offsets == [[0, 1], [2, 0]]
    consumer.stop()
    await running


async def test_messages_that_were_held_back_precede_later_ones(fake_clock: FakeClock) -> None:
    """consumer/C:Ba4: in key order, whatever arrived meanwhile."""
    log, handler = log_of(*"aaaaa"), Batches(once(0, Nak(1.0)))
    await finite(log, fake_clock).run_batch(handler, size=3)
    assert handler.offsets == [[0, 1, 2], [0, 1, 2], [3, 4]]


@pytest.mark.parametrize("result", [Terminate("no"), ToDeadLetter("no"), 17])
async def test_a_key_goes_on_after_the_dead_letter_of_its_poison(
    result: object, fake_clock: FakeClock
) -> None:
    """consumer/C:Ba4: not before the poison is settled."""
    log, handler = log_of(*"aaa"), Batches(once(1, result))
    report = await skipping(log, fake_clock).run_batch(handler)
    assert handler.offsets == [[0, 1, 2], [2]]
    assert (report.counts.acked, report.counts.terminated) == (2, 1)


async def test_a_blocked_message_holds_back_its_key_only(fake_clock: FakeClock) -> None:
    """consumer/C:Ba4."""
    log, handler = log_of(*"aab"), Batches(once(0, Terminate("no")))
    source = MemorySource(log, clock=fake_clock)
    consumer = Consumer(source, clock=fake_clock, poison="block")
    running = asyncio.create_task(consumer.run_batch(handler))
    await fake_clock.advance(10.0)
    assert handler.offsets == [[0, 1, 2]]
    consumer.stop()
    report = await running
    assert report.counts.acked == 1
    assert report.positions[P0] == 0


@pytest.mark.filterwarnings("ignore:parked=MemoryParkStore")
async def test_a_batch_parks_a_key_behind_its_poison_and_unpark_replays_it(
    fake_clock: FakeClock,
) -> None:
    """consumer/C:Ba4, consumer/C:N4: in order, and removed one by one."""
    log, store = log_of(*"aaaab"), MemoryParkStore()
    handler = Batches(once(1, Terminate("no")))
    consumer = Consumer(
        MemorySource(log, clock=fake_clock), clock=fake_clock, poison=Poison(parked=store)
    )
    async with consumer:
        running = asyncio.create_task(consumer.run_batch(handler, size=5))
        await fake_clock.advance(2.0)
        assert handler.offsets == [[0, 1, 2, 3, 4]]
        assert consumer.parked == ("a",)
        assert log.positions[P0] == Position(5)
        unparked = await consumer.unpark("a")
        assert (unparked.handled, unparked.is_done) == (3, True)
        assert handler.offsets[1:] == [[1], [2], [3]]
        log.produce("t", b"", key="a")
        await fake_clock.advance(1.0)
        assert handler.offsets[-1] == [5]
        consumer.stop()
        assert (await running).counts.parked == 3


async def test_a_key_waits_for_a_manual_settle(fake_clock: FakeClock) -> None:
    """The message behind it returns to its lane."""
    log, handler = log_of(*"aa"), Batches(once(0, Manual()))
    source = MemorySource(log, clock=fake_clock)
    consumer = Consumer(source, clock=fake_clock)
    running = asyncio.create_task(consumer.run_batch(handler))
    await fake_clock.advance(10.0)
    assert handler.offsets == [[0, 1]]
    assert handler.batches[0][0].settle(Ack())
    await fake_clock.advance(10.0)
    assert handler.offsets == [[0, 1], [1]]
    consumer.stop()
    assert (await running).counts.acked == 2


async def test_a_result_of_a_wrong_type_is_poison_for_its_message_only(
    fake_clock: FakeClock,
) -> None:
    """O-T12, consumer/C:Ba1."""
    handler = Batches(lambda batch: [None, "nonsense", None][: len(batch)])
    report = await skipping(log_of(*"abc"), fake_clock).run_batch(handler)
    assert (report.counts.acked, report.counts.terminated) == (2, 1)
    assert report.counts.miscounted_batches == 0


async def test_messages_without_a_result_are_poison(fake_clock: FakeClock) -> None:
    """O-T12, consumer/O11."""
    handler = Batches(lambda _: [Ack()])
    report = await skipping(log_of(*"abc"), fake_clock).run_batch(handler)
    assert (report.counts.acked, report.counts.terminated) == (1, 2)
    assert report.counts.miscounted_batches == 1


async def test_superfluous_results_are_reported(
    fake_clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    """O-T12, consumer/O12: no message is settled twice."""
    handler = Batches(lambda _: [Ack()] * 5)
    report = await finite(log_of(*"abc"), fake_clock).run_batch(handler)
    assert (report.counts.acked, report.counts.miscounted_batches) == (3, 1)
    assert "5 results for 3 messages" in caplog.text


async def test_with_retry_messages_without_a_result_are_tried_again(
    fake_clock: FakeClock,
) -> None:
    """consumer/C:Ba1: one mistake of the handler does not turn good messages into dead letters."""
    handler = Batches(lambda batch: [Ack()] * max(1, len(batch) - 1))
    report = await finite(log_of(*"abc"), fake_clock, poison="skip").run_batch(
        handler, on_mismatch="retry"
    )
    assert (report.counts.acked, report.counts.terminated) == (3, 0)
    assert handler.offsets == [[0, 1, 2], [2]]


# -- exceptions -----------------------------------------------------------------------------------


async def test_a_batch_that_fails_is_halved_until_its_poison_is_alone(
    fake_clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    """O-T16, consumer/C:Ba2: the others are acknowledged without a counted attempt."""
    log, handler = log_of(*range(8)), Batches(refusing(5))
    report = await skipping(log, fake_clock).run_batch(handler, size=8)
    assert handler.offsets[0] == list(range(8))
    assert handler.calls_with(5) == 4
    assert [5] in handler.offsets
    assert (report.counts.acked, report.counts.terminated) == (7, 1)
    assert report.counts.split_batches == 3
    assert log.positions[P0] == Position(8)
    assert "in batches of at most 4" in caplog.text


async def test_the_attempts_of_the_poison_are_its_own(fake_clock: FakeClock) -> None:
    """consumer/C:Ba2: only those in which it was alone count."""
    retry = RetryPolicy(attempts=3, unlisted_attempts=3)
    handler = Batches(refusing(0))
    consumer = finite(log_of(*range(4)), fake_clock, poison="skip", retry=retry)
    report = await consumer.run_batch(handler, size=4)
    alone = [offsets for offsets in handler.offsets if offsets == [0]]
    assert len(alone) == 3
    assert handler.calls_with(0) == 5
    assert (report.counts.acked, report.counts.terminated) == (3, 1)


async def test_a_batch_of_one_key_is_halved_in_order(fake_clock: FakeClock) -> None:
    """consumer/C:Ba2, consumer/C:Ba4: no message of the key passes its poison."""
    handler = Batches(refusing(5))
    report = await skipping(log_of(*"aaaaaaaa"), fake_clock).run_batch(handler, size=8)
    done = [offset for offsets in handler.offsets if 5 not in offsets for offset in offsets]
    assert done == [0, 1, 2, 3, 4, 6, 7]
    assert handler.calls_with(5) == 4
    assert report.counts.terminated == 1


async def test_messages_that_arrive_later_are_not_in_the_halves(fake_clock: FakeClock) -> None:
    """consumer/C:Ba2: they are batched as usual meanwhile."""
    handler = Batches(refusing(1))
    report = await skipping(log_of(*range(40)), fake_clock).run_batch(handler, size=20)
    assert [handler.offsets[1][0], handler.offsets[1][-1]] == [20, 39]
    assert report.counts.acked == 39


async def test_an_outage_neither_splits_a_batch_nor_uses_up_attempts(
    fake_clock: FakeClock,
) -> None:
    """The whole batch is retried until it succeeds."""
    failures = 10

    def answer(_batch: list[Message]) -> None:
        nonlocal failures
        if failures:
            failures -= 1
            raise UnavailableError("down")

    handler = Batches(answer)
    log = log_of(*"abcab")
    report = await skipping(log, fake_clock).run_batch(handler, size=5)
    assert [sorted(offsets) for offsets in handler.offsets] == [[0, 1, 2, 3, 4]] * 11
    assert report.counts.acked == 5
    assert report.counts.split_batches == 0


async def test_an_outage_for_one_message_is_split_when_other_batches_succeed(
    fake_clock: FakeClock,
) -> None:
    """consumer/C:Ba2: its neighbours do not wait for its destination."""
    handler = Batches(refusing(3, error=UnavailableError))
    source = MemorySource(log_of(*range(30)), clock=fake_clock)
    consumer = Consumer(source, clock=fake_clock)
    running = asyncio.create_task(consumer.run_batch(handler, size=10, max_wait=0.1))
    await fake_clock.advance(1.0)
    source.log.produce("t", b"", key="x")
    await fake_clock.advance(120.0)
    consumer.stop()
    report = await running
    assert report.counts.acked == 30
    assert [3] in handler.offsets
    assert report.positions[P0] == 3


async def test_a_handler_that_is_cut_fails_its_messages_once(fake_clock: FakeClock) -> None:
    """The same as if the handler had raised."""
    events = []

    async def handle(batch: list[Message]) -> None:
        events.append([message.offset for message in batch])
        if len(batch) > 1:
            await fake_clock.sleep(math.inf if len(events) > 9 else 100.0)

    consumer = finite(log_of(*"ab"), fake_clock)
    async with consumer:
        running = asyncio.create_task(consumer.run_batch(handle, size=2))
        await fake_clock.advance(1.0)
        (slot,) = consumer._open().workers.slots
        slot.cut(TimeoutError("too slow"))
        report = await running
    assert events == [[0, 1], [0], [1]]
    assert (report.counts.acked, report.counts.split_batches) == (2, 1)


async def test_an_exception_that_is_no_error_fails_its_batch_only(fake_clock: FakeClock) -> None:
    """O-T16: the worker continues."""
    failures = [GeneratorExit()]

    def answer(_batch: list[Message]) -> None:
        if failures:
            raise failures.pop()

    handler = Batches(answer)
    report = await finite(log_of(*"ab"), fake_clock).run_batch(handler)
    assert handler.offsets == [[0, 1], [0], [1]]
    assert report.counts.acked == 2


async def test_an_exit_of_the_program_ends_the_consumer(fake_clock: FakeClock) -> None:
    """O-T16: it drains and raises the exit; its messages are redelivered."""
    log, handler = log_of(*"abc"), Batches(refusing(2, error=SystemExit))
    with pytest.raises(SystemExit):
        await finite(log, fake_clock, concurrency=1).run_batch(handler, size=2)
    assert handler.offsets == [[0, 1], [2]]
    assert log.positions[P0] == Position(2)


async def test_a_revoke_amid_a_batch_leaves_the_other_partition_its_messages(
    fake_clock: FakeClock,
) -> None:
    """consumer/C:Ba4: messages of one key, with `key_scope="topic"`, behind a failed message whose
    partition is revoked.
    """
    log = MemoryLog(records("aa"), partitions=[P1])
    source = MemorySource(log, clock=fake_clock)
    handled: list[list[tuple[int, int]]] = []

    async def handle(batch: list[Message]) -> list[object]:
        handled.append([(message.partition, message.offset) for message in batch])
        await fake_clock.sleep(1.0)
        return [Nak(), *[Ack()] * 3] if len(batch) == 4 else [Ack()] * len(batch)

    consumer = Consumer(source, clock=fake_clock, key=Keys(scope="topic"))
    running = asyncio.create_task(consumer.run_batch(handle, max_wait=1.0))
    await fake_clock.advance(0.5)
    for _ in range(2):
        log.produce("t", b"", key="a", partition=1)
    await fake_clock.advance(1.0)
    await source.revoke([P0], within=5.0)
    await fake_clock.advance(10.0)
    assert handled == [[(0, 0), (0, 1), (1, 0), (1, 1)], [(1, 0), (1, 1)]]
    assert log.positions == {P0: Position(0), P1: Position(2)}
    consumer.stop()
    assert (await running).counts.dropped == 2


async def test_a_batch_that_takes_too_long_is_halved(fake_clock: FakeClock) -> None:
    """consumer/C:Ba2: by the consumer's timeout; only the message that hangs fails."""
    handled: list[int] = []

    async def handle(batch: list[Message]) -> None:
        await fake_clock.sleep(max(100.0 if message.offset == 2 else 0.1 for message in batch))
        handled.extend(message.offset for message in batch)

    consumer = skipping(log_of(*range(4)), fake_clock, timeout=1.0)
    report = await consumer.run_batch(handle)
    assert sorted(handled) == [0, 1, 3]
    assert (report.counts.acked, report.counts.terminated) == (3, 1)


async def test_results_that_a_cut_handler_returns_count(fake_clock: FakeClock) -> None:
    """consumer/C:Ba1: they tell which messages it handled before the cut."""

    async def handle(batch: list[Message]) -> list[object]:
        results: list[object] = [Nak()] * len(batch)
        try:
            for place, message in enumerate(batch):
                await fake_clock.sleep(100.0 if message.offset == 1 else 0.0)
                results[place] = Ack()
        except asyncio.CancelledError:
            pass
        return results

    consumer = skipping(log_of(*range(3)), fake_clock, timeout=1.0)
    report = await consumer.run_batch(handle)
    assert (report.counts.acked, report.counts.terminated) == (1, 2)
    assert report.counts.split_batches == 0


async def test_a_key_of_two_partitions_is_in_one_running_batch(fake_clock: FakeClock) -> None:
    """G-T8, consumer/C:Ba3: with `key_scope="topic"`; a revoke of one partition keeps the messages
    of the other.
    """
    log = MemoryLog([*records("aa"), *records("aa", partition=1)])
    source = MemorySource(log, clock=fake_clock)
    most, running = 0, 0
    handled: list[tuple[int, int]] = []

    async def handle(batch: list[Message]) -> None:
        nonlocal most, running
        running += 1
        most = max(most, running)
        await fake_clock.sleep(1.0)
        running -= 1
        handled.extend((message.partition, message.offset) for message in batch)

    consumer = Consumer(source, clock=fake_clock, key=Keys(scope="topic"))
    running_consumer = asyncio.create_task(consumer.run_batch(handle, size=3, max_wait=0.5))
    await fake_clock.advance(0.4)
    await source.revoke([P0], within=5.0)
    await fake_clock.advance(10.0)
    consumer.stop()
    await running_consumer
    assert most == 1
    assert [place for place in handled if place[0] == 1] == [(1, 0), (1, 1)]
    assert log.positions[P1] == Position(2)


async def test_a_batch_that_is_cut_for_one_partition_is_not_split_for_the_others(
    fake_clock: FakeClock,
) -> None:
    """They have not failed, and are retried."""
    log = MemoryLog([*records("ab"), *records("ab", partition=1)])
    source = MemorySource(log, clock=fake_clock)
    begun: list[list[int]] = []

    async def handle(batch: list[Message]) -> None:
        begun.append([message.partition for message in batch])
        await fake_clock.sleep(100.0 if len(begun) == 1 else 0.0)

    consumer = Consumer(source, clock=fake_clock, drain=1.0)
    running = asyncio.create_task(consumer.run_batch(handle))
    await fake_clock.advance(1.0)
    await source.revoke([P0], within=5.0)
    await fake_clock.advance(50.0)
    assert [sorted(partitions) for partitions in begun] == [[0, 0, 1, 1], [1, 1]]
    consumer.stop()
    report = await running
    assert report.positions == {P1: 2}
    assert (report.counts.acked, report.counts.split_batches) == (2, 0)


async def test_results_of_a_closing_claim_count_if_they_are_acknowledgements(
    fake_clock: FakeClock,
) -> None:
    """Messages with other results are left to the next claim, in order."""
    log = log_of(*"aaaab")

    async def handle(batch: list[Message]) -> list[object]:
        await fake_clock.sleep(1.0)
        results: list[object] = [None, Nak(), None, None, None]
        return results[: len(batch)]

    source = MemorySource(log, clock=fake_clock)
    consumer = Consumer(source, clock=fake_clock)
    running = asyncio.create_task(consumer.run_batch(handle))
    await fake_clock.advance(0.5)
    consumer.stop()
    report = await running
    assert (report.counts.acked, report.counts.dropped) == (2, 3)
    assert report.positions[P0] == 1
    assert report.complete


@given(
    count=st.integers(1, 120),
    size=st.integers(1, 70),
    keys=st.integers(1, 20),
    data=st.data(),
)
@examples(15, long=100)
def test_one_poison_message_costs_its_neighbours_nothing(
    count: int, size: int, keys: int, data: st.DataObject
) -> None:
    """consumer/C:Ba2: all others are acknowledged. The handler is called log2(size) times more
    often than the poison has attempts, and only the poison uses up attempts.
    """
    poison = data.draw(st.integers(0, count - 1))
    handler = Batches(refusing(poison))

    async def main() -> None:
        log = log_of(*[place % keys for place in range(count)])
        retry = RetryPolicy(attempts=2, unlisted_attempts=2)
        consumer = finite(log, clock, poison="skip", retry=retry, concurrency=3)
        report = await consumer.run_batch(handler, size=size)
        assert (report.counts.acked, report.counts.terminated) == (count - 1, 1)
        assert log.positions[P0] == Position(count)

    with FakeClock() as clock:
        clock.run(main())
    assert handler.calls_with(poison) <= 2 + math.floor(math.log2(size))
    assert {
        offset
        for offsets, attempts in zip(handler.offsets, handler.attempts, strict=True)
        for offset, attempt in zip(offsets, attempts, strict=True)
        if attempt > 1
    } <= {poison}


@pytest.fixture(autouse=True)
def _drainer(caplog: pytest.LogCaptureFixture) -> None:
    """Suppress the log lines of failures."""
    caplog.set_level(logging.WARNING)
