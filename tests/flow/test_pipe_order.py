"""Order per key after failures: single cases, most of them found by `test_schedules.py`."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from piping import P0, P1, Destination, key_of, piped, records

from sluicegate import (
    Batcher,
    Limits,
    PermanentError,
    RefusedError,
    Retry,
    RetryPolicy,
    UnknownOutcomeError,
    flow,
    stack,
)
from sluicegate.consumer import MemoryLog, MemoryParkStore, MemorySource, Poison

if TYPE_CHECKING:
    from sluicegate import Batch
    from sluicegate.testing import FakeClock


class LastingStore(MemoryParkStore):
    """A park store that outlives the pipes of a test."""

    is_durable = True


@pytest.mark.parametrize("key", [None, "a"])
async def test_rows_of_one_key_stay_in_order_after_an_unknown_outcome(
    fake_clock: FakeClock, key: str | None
) -> None:
    """`None` is a key, too."""
    log = MemoryLog(records([key] * 8))
    sink = Destination()
    lost: list[int] = []

    async def before(batch: Batch[Any]) -> None:
        if len(lost) < 2:
            lost.append(1)
            raise UnknownOutcomeError("the answer was lost")

    sink.before = before
    limits = Limits(max_items=4, max_delay=0.1, workers=2)
    report = await piped(log, sink, fake_clock, limits=limits).run()
    assert sink.offsets == list(range(8))
    assert report.complete


@pytest.mark.parametrize("prefix_safe", [True, False])
async def test_a_record_whose_rows_wait_behind_its_own_failed_one_is_sent_again(
    fake_clock: FakeClock, prefix_safe: bool
) -> None:
    """Two rows of one key; a write contains only one of them if the sink is not prefix-safe."""
    log = MemoryLog(records("ab"))
    sink = Destination(prefix_safe=prefix_safe)
    lost: list[int] = []

    async def before(batch: Batch[Any]) -> None:
        if not lost:
            lost.append(1)
            raise UnknownOutcomeError("the answer was lost")

    def rows(message: Any) -> Any:
        return [(message.key, message.offset, part) for part in range(3)]

    sink.before = before
    limits = Limits(max_items=1, max_delay=0.1)
    pipe = piped(log, sink, fake_clock, limits=limits, transform=rows, key=lambda row: row[0])
    report = await pipe.run()
    assert [row for row in sink.applied if row[0] == "a"] == [("a", 0, part) for part in range(3)]
    assert len(sink.applied) == 6
    assert report.complete


async def test_rows_of_a_lost_partition_are_not_sent_again_with_those_of_another(
    fake_clock: FakeClock,
) -> None:
    """Both partitions have the key, and the row of the first one is sent again. consumer/C:R2."""
    log = MemoryLog([*records("a"), *records("a", partition=1)])
    sink, reached = Destination(), asyncio.Event()

    async def before(batch: Batch[Any]) -> None:
        if not reached.is_set():
            reached.set()
            raise UnknownOutcomeError("the answer was lost")

    sink.before = before
    source = MemorySource(log, clock=fake_clock)
    limits = Limits(max_items=1, max_delay=0.1)
    batcher = Batcher(sink, key=key_of, limits=limits, clock=fake_clock)
    pipe = flow.pipe(source, batcher, retry=RetryPolicy())
    async with asyncio.TaskGroup() as tasks:
        run = tasks.create_task(pipe.run())
        await reached.wait()
        (first,) = sink.writes[0]
        kept, gone = (P0, P1) if first.partition == 0 else (P1, P0)
        await fake_clock.advance(0.05)  # the backoff takes 0.1 s
        source.lose([gone])
        await fake_clock.advance(5.0)
        pipe.stop()
    assert [(row.partition, row.offset) for row in sink.applied] == [(kept.partition, 0)]
    assert log.start(kept).offset == 1
    assert log.start(gone).offset == 0
    assert run.result().complete


async def test_records_without_rows_make_room_for_the_next_ones(fake_clock: FakeClock) -> None:
    log = MemoryLog(records("abcdefgh"))

    async def no_rows(message: Any) -> None:
        await fake_clock.sleep(0.01)

    pipe = piped(log, Destination(), fake_clock, in_flight=2, transform=no_rows)
    report = await pipe.run()
    assert report.source.counts.acked == 8
    assert log.start(P0).offset == 8


async def test_rows_behind_one_refused_in_a_probe_wait_with_their_key(
    fake_clock: FakeClock,
) -> None:
    """While everything is refused, a retry sends the first row alone, and it is refused
    permanently.
    """
    log = MemoryLog(records("aa"))
    sink = Destination()

    async def before(batch: Batch[Any]) -> None:
        if len(batch) == 2:
            raise RefusedError("read-only")
        if batch[0].offset == 0:
            raise PermanentError("a constraint")

    sink.before = before
    limits = Limits(max_items=2, max_delay=0.1)
    batcher = Batcher(stack(sink, Retry()), key=key_of, limits=limits, clock=fake_clock)
    pipe = flow.pipe(
        MemorySource(log, clock=fake_clock), batcher, poison="block", retry=RetryPolicy(attempts=1)
    )
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(pipe.run())
        await fake_clock.advance(5.0)
        assert [blocked.offset for blocked in pipe.blocked] == [0]
        assert [[row.offset for row in write] for write in sink.writes] == [[0, 1], [0]]
        pipe.stop()


async def test_a_row_that_waited_when_its_write_was_cut_holds_its_key(
    fake_clock: FakeClock,
) -> None:
    """While everything is refused, a retry sends one row alone, and its write hangs: the other row
    ends unsent.
    """
    log = MemoryLog(records("abbb"))
    sink = Destination()

    async def before(batch: Batch[Any]) -> None:
        if len(sink.writes) == 1:
            raise RefusedError("read-only")
        if len(sink.writes) == 2:
            await asyncio.Event().wait()

    sink.before = before
    limits = Limits(max_items=2, max_delay=0.1, flush_timeout=1.0)
    batcher = Batcher(stack(sink, Retry()), key=key_of, limits=limits, clock=fake_clock)
    report = await flow.pipe(MemorySource(log, ends=True, clock=fake_clock), batcher).run()
    assert [[row.offset for row in write] for write in sink.writes[:2]] == [[0, 1], [0]]
    assert [offset for offset in sink.offsets if offset] == [1, 2, 3]
    assert report.batcher.tally.unsent == 1
    assert report.source.complete


async def test_a_row_without_a_usable_key_may_wait_while_others_of_its_record_fail(
    fake_clock: FakeClock,
) -> None:
    """It waits for capacity and is refused only then; it is poison for its own record only."""
    log = MemoryLog(records("ab"))
    sink = Destination()

    async def before(batch: Batch[Any]) -> None:
        if len(sink.writes) <= 2:
            raise UnknownOutcomeError("the answer was lost")

    def rows(message: Any) -> Any:
        return ["a", "a", "a", "none"] if message.key == "a" else ["b"]

    sink.before = before
    limits = Limits(max_items=1, max_delay=0.1, max_pending_items=2)
    pipe = piped(
        log,
        sink,
        fake_clock,
        limits=limits,
        transform=rows,
        key=lambda row: {"a": 1, "b": 2}[row],
        poison="skip",
    )
    report = await pipe.run()
    assert "b" in sink.applied
    assert report.source.counts.terminated == 1
    assert log.start(P0).offset == 2


async def test_two_calls_may_unpark_one_key_of_several_partitions(fake_clock: FakeClock) -> None:
    """Each partition's records are replayed by one of the calls."""
    log = MemoryLog([*records("aa"), *records("aa" * 4, partition=1)])
    sink, refused = Destination(), [True]

    async def before(batch: Batch[Any]) -> None:
        await fake_clock.sleep(0.01)
        if refused:
            raise PermanentError("a constraint")

    sink.before = before
    limits = Limits(max_items=1, max_delay=0.0)
    pipe = piped(
        log, sink, fake_clock, ends=False, limits=limits, poison=Poison(parked=LastingStore())
    )
    async with asyncio.TaskGroup() as tasks:
        run = tasks.create_task(pipe.run())
        await fake_clock.advance(5.0)
        assert pipe.parked == ("a", "a")
        refused.clear()
        done = await asyncio.gather(pipe.unpark("a"), pipe.unpark("a"))
        assert sum(each.handled for each in done) == 10
        assert not pipe.parked
        pipe.stop()
    assert sorted(sink.offsets) == sorted([*range(2), *range(8)])
    assert run.result().source.counts.unparked == 10


async def test_a_key_can_be_parked_again_after_a_revoke_in_the_middle_of_its_replay(
    fake_clock: FakeClock,
) -> None:
    """consumer/C:R4: the old claim's turn at the key ends with its message."""
    log = MemoryLog(records("aa"))
    sink, refused = Destination(), [True]

    async def before(batch: Batch[Any]) -> None:
        if refused:
            raise PermanentError("a constraint")
        await fake_clock.sleep(1.0)

    sink.before = before
    source = MemorySource(log, clock=fake_clock)
    limits = Limits(max_items=1, max_delay=0.0)
    batcher = Batcher(sink, key=key_of, limits=limits, clock=fake_clock)
    pipe = flow.pipe(source, batcher, poison=Poison(parked=LastingStore()))
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(pipe.run())
        await fake_clock.advance(5.0)
        refused.clear()
        replay = tasks.create_task(pipe.unpark("a"))
        await fake_clock.advance(0.5)
        await source.revoke([P0], within=0.1)
        assert not (await replay).is_done
        source.assign([P0])
        log.append(records("a", first=2)[0])
        await fake_clock.advance(5.0)
        assert pipe.stats().source.counts.parked == 3
        assert log.start(P0).offset == 3
        assert (await pipe.unpark("a")).handled == 3
        pipe.stop()


async def test_a_row_behind_a_refused_one_is_not_blocked_with_it(fake_clock: FakeClock) -> None:
    """Both may have been applied before; only the first is refused and given up."""
    log = MemoryLog(records("aa"))
    sink = Destination()

    async def before(batch: Batch[Any]) -> None:
        if len(sink.writes) == 1:
            raise UnknownOutcomeError("the answer was lost")
        if batch[0].offset == 0:
            raise PermanentError("a constraint")

    sink.before = before
    limits = Limits(max_items=2, max_delay=0.1)
    policy = RetryPolicy(attempts=3)
    pipe = piped(log, sink, fake_clock, ends=False, limits=limits, poison="block", retry=policy)
    async with asyncio.TaskGroup() as tasks:
        run = tasks.create_task(pipe.run())
        await fake_clock.advance(5.0)
        assert [blocked.offset for blocked in pipe.blocked] == [0]
        pipe.unblock("a", action="skip")
        await fake_clock.advance(5.0)
        assert sink.offsets == [1]
        pipe.stop()
    assert run.result().source.counts.terminated == 1
