"""The snapshot of a consumer, and the use of a stored offset map.

White box: a tracker and a map without a source.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from typing import TYPE_CHECKING

import pytest
from consumer_help import P0, Recorder, log_of, records
from hypothesis import given
from hypothesis import strategies as st
from watch_help import Gate, running

from sluicegate import ClosedError, Consumer, Nak, Terminate, ToDeadLetter
from sluicegate.consumer import MemoryLog, MemorySource, Position
from sluicegate.consumer.operating.stats import InFlightStats
from sluicegate.consumer.progress import offset_map
from sluicegate.consumer.progress.tracker import Tracker

if TYPE_CHECKING:
    from sluicegate import Message
    from sluicegate.consumer.operating.stats import ConsumerStats
    from sluicegate.testing import FakeClock


async def test_a_snapshot_has_levels_counts_and_positions(fake_clock: FakeClock) -> None:
    """consumer/C:B4: its figures do not change while the consumer continues."""
    gate = Gate(b=Nak(60.0), c=Terminate("bad"), d=None)
    log = MemoryLog(records("aabcdee"))
    options = {"name": "billing", "poison": "block", "concurrency": 2, "on_nak": "block"}
    async with running(fake_clock, log, gate, **options) as consumer:
        await consumer.commit()
        stats = consumer.stats()
        assert stats.name == "billing"
        assert stats.in_flight == InFlightStats(
            messages=6,
            bytes=6,
            ready=0,
            running=2,
            writing=0,
            manual=0,
            backing_off=1,
            blocked=1,
            waiting=2,
            batched=0,
            max_messages=1000,
            max_bytes=64 << 20,
        )
        assert (stats.state, stats.is_ready, stats.deliveries.received) == ("running", True, 7)
        assert (stats.counts.acked, stats.counts.naks) == (1, 1)
        partition = stats.partitions[P0]
        assert (partition.position, partition.committed, partition.is_paused) == (0, 0, False)
        assert partition.map_bytes == len(log.positions[P0].metadata) > 0
        assert stats.commits == 1
        assert str(stats) == (
            "billing: 1 acknowledged, 0 dead letters, 0 parked, 0 given up, 1 failed tries; "
            "6 inside (2 running, 0 ready, 2 queued, 1 backing off, 1 blocked); "
            "1 partitions, 1 commits, 0 failed"
        )
        consumer.pause(P0)
        gate.open()
        await fake_clock.run_until_idle()
        assert stats.counts.acked == 1
        assert consumer.stats().counts.acked == 5
        assert consumer.stats().partitions[P0].position == 2
        assert consumer.stats().partitions[P0].is_paused
    assert consumer.stats().partitions == {}


async def test_a_dead_letter_without_dead_letters_is_given_up_and_counted(
    fake_clock: FakeClock,
) -> None:
    gate = Gate(a=ToDeadLetter("old"))
    async with running(fake_clock, log_of("a"), gate, poison="skip") as consumer:
        assert consumer.stats().counts.terminated == 1


def test_a_consumer_that_was_never_open_has_no_statistics() -> None:
    consumer = Consumer(MemorySource(MemoryLog()))
    with pytest.raises(ClosedError, match="consumer is not open"):
        consumer.stats()
    assert consumer.name == "consumer"


async def test_any_thread_may_take_a_snapshot(real_clock: object) -> None:
    """The positions in another thread's snapshot never run ahead and never move back."""
    log = MemoryLog(records(range(20_000)))
    consumer = Consumer(MemorySource(log, ends=True))
    taken: list[ConsumerStats] = []
    ended, one_more = threading.Event(), threading.Event()

    def watch() -> None:
        while not ended.is_set():
            taken.append(consumer.stats())
            one_more.set()

    async def handle(message: Message) -> None:
        if message.offset % 1_000 == 0:  # however rarely the other thread gets the GIL
            one_more.clear()
            await asyncio.to_thread(one_more.wait)

    async with consumer:
        thread = threading.Thread(target=watch)
        thread.start()
        try:
            await consumer.run(handle)
        finally:
            ended.set()
            thread.join()
    positions = [stats.partitions[P0].position for stats in taken if stats.partitions]
    assert positions == sorted(positions)
    assert all(0 <= position <= 20_000 for position in positions)
    assert len(set(positions)) > 2


@given(st.lists(st.tuples(st.integers(1, 4), st.sets(st.integers(0, 40))), max_size=12))
def test_a_position_seen_is_the_position(rounds: list[tuple[int, set[int]]]) -> None:
    """`head` and `seen_position` release nothing, and agree with `position`."""
    tracker = Tracker(5)
    for count, done in rounds:
        first = tracker.next_offset + 1
        tracker.admit(first, first + count - 1, count)
        for index in done:
            if index < tracker.next_index:
                tracker.done(index)
        span, head = tracker.span, tracker.head()
        seen = tracker.seen_position()
        assert tracker.span == span
        assert seen == tracker.position()
        assert (head is None) == (tracker.span == 0)
        assert head is None or tracker.offset_of(head) == seen


# -- the stored map --------------------------------------------------------------------------------


def interrupted(*ranges: tuple[int, int]) -> MemoryLog:
    """A log of ten records whose consumer was killed with these ranges settled beyond offset 2."""
    log = MemoryLog(records("abcdefghij"))
    log.store({P0: Position(2, offset_map.encode(2, ranges).text)})
    return log


async def test_what_was_skipped_and_what_ran_again_is_told_once(
    fake_clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    """consumer/C:N6: after the end of the map."""
    caplog.set_level(logging.INFO)
    handler = Recorder()
    log = interrupted((3, 5), (6, 8))
    async with running(fake_clock, log, handler, name="billing") as consumer:
        await fake_clock.advance(10.0)
        told = [line for line in caplog.messages if "continued at" in line]
        assert told == [
            "billing: t/0 continued at 2: up to 8, 4 records were settled before and skipped, "
            "2 run again"
        ]
        assert handler.offsets == [2, 5, 8, 9]
        deliveries = consumer.stats().deliveries
        assert (deliveries.skipped, deliveries.replayed) == (4, 2)


async def test_nothing_is_told_before_the_end_of_the_map_is_passed(
    fake_clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    """consumer/C:N6: the window keeps the consumer before the end of the map."""
    caplog.set_level(logging.INFO)
    gate = Gate()
    async with running(fake_clock, interrupted((5, 9)), gate, in_flight=2) as consumer:
        await fake_clock.advance(10.0)
        assert not [line for line in caplog.messages if "continued at" in line]
        assert consumer.stats().deliveries.replayed == 2
        gate.open()
        await fake_clock.advance(10.0)
        assert len([line for line in caplog.messages if "continued at" in line]) == 1


async def test_the_sums_outlive_the_claims(fake_clock: FakeClock) -> None:
    """consumer/C:N6: the sums of two claims of a partition, each with a map."""
    log = interrupted((3, 5))
    source = MemorySource(log, clock=fake_clock)
    async with running(fake_clock, source, Recorder()) as consumer:
        source.lose([P0])
        log.store({P0: Position(2, offset_map.encode(2, [(4, 5)]).text)})
        source.assign([P0])
        await fake_clock.run_until_idle()
        deliveries = consumer.stats().deliveries
        assert (deliveries.skipped, deliveries.replayed) == (3, 3)


async def test_records_delivered_again_in_a_claim_are_counted(fake_clock: FakeClock) -> None:
    source = MemorySource(log_of("a"), clock=fake_clock)
    handler = Recorder()
    async with running(fake_clock, source, handler) as consumer:
        source.redeliver(P0)
        await fake_clock.run_until_idle()
        assert handler.offsets == [0]
        assert consumer.stats().deliveries.redelivered == 1
