"""The end of a pipe: by a stop, by one or two cancellations, by the end of its batcher or its
source.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from piping import P0, Destination, key_of, piped, records

from sluicegate import Batcher, ClosedError, Limits, Outcome, PermanentError, flow
from sluicegate.consumer import MemoryLog, MemorySource
from sluicegate.errors import BatcherBroken

if TYPE_CHECKING:
    from sluicegate import Batch
    from sluicegate.testing import FakeClock


class Slow(Destination):
    """Takes some time for each batch."""

    def __init__(self, clock: FakeClock, seconds: float) -> None:
        super().__init__()

        async def wait(batch: Batch[Any]) -> None:
            await clock.sleep(seconds)

        self.before = wait


async def test_a_drain_writes_what_is_inside_and_stores_the_position(
    fake_clock: FakeClock,
) -> None:
    log, sink = MemoryLog(records("abcd" * 3)), Slow(fake_clock, 1.0)
    limits = Limits(max_items=4, max_delay=60.0, workers=1)
    pipe = piped(log, sink, fake_clock, ends=False, drain=10.0, limits=limits)
    async with asyncio.TaskGroup() as tasks:
        run = tasks.create_task(pipe.run())
        await fake_clock.advance(0.5)
        pipe.stop()
    report = run.result()
    assert sorted(sink.offsets) == list(range(12))
    assert log.positions[P0].offset == 12
    assert report.complete
    assert "12 messages acknowledged" in str(report)
    assert "12 delivered" in str(report) or "delivered=12" in str(report)


async def test_a_drain_that_is_too_short_leaves_rows_to_the_next_owner(
    fake_clock: FakeClock,
) -> None:
    """No write begins in the second half of the drain, so none is cut off: the next pipe writes the
    rest.
    """
    log, sink = MemoryLog(records("abcd" * 10)), Slow(fake_clock, 1.0)
    limits = Limits(max_items=4, max_delay=0.1, workers=1)
    pipe = piped(log, sink, fake_clock, ends=False, drain=5.0, limits=limits)
    async with asyncio.TaskGroup() as tasks:
        run = tasks.create_task(pipe.run())
        await fake_clock.advance(0.5)
        pipe.stop()
    report = run.result()
    assert report.complete
    report.batcher.verify()
    assert report.batcher.tally.unknown == 0
    assert 0 < len(sink.offsets) < 40
    await piped(log, sink, fake_clock, limits=limits).run()
    assert sorted(sink.offsets) == list(range(40))
    for key in "abcd":
        mine = [row.offset for row in sink.applied if row.key == key]
        assert mine == sorted(mine)


async def test_a_cancellation_drains_and_a_second_one_ends_at_once(fake_clock: FakeClock) -> None:
    log, sink = MemoryLog(records("abcd" * 10)), Slow(fake_clock, 100.0)
    pipe = piped(log, sink, fake_clock, ends=False, drain=50.0)
    run = asyncio.ensure_future(pipe.run())
    await fake_clock.advance(1.0)
    run.cancel()
    await fake_clock.advance(1.0)
    assert not run.done()
    run.cancel()
    await fake_clock.advance(1.0)
    assert run.done()
    with pytest.raises(asyncio.CancelledError):
        await run
    assert sink.offsets == []
    assert log.start(P0).offset == 0


async def test_the_end_of_its_batcher_ends_the_pipe(fake_clock: FakeClock) -> None:
    log, sink = MemoryLog(records("ab" * 10)), Slow(fake_clock, 1.0)
    batcher = Batcher(sink, key=key_of, clock=fake_clock)
    pipe = flow.pipe(MemorySource(log, clock=fake_clock), batcher)
    run = asyncio.ensure_future(pipe.run())
    await fake_clock.advance(0.1)
    await batcher.shutdown()
    log.append(records("a", first=20)[0])
    with pytest.raises(ClosedError):
        await run
    assert len(sink.offsets) == log.start(P0).offset == 20


async def test_a_broken_batcher_ends_the_pipe_and_settles_nothing(fake_clock: FakeClock) -> None:
    async def refuse(batch: Batch[Any]) -> None:
        raise PermanentError("no")

    log = MemoryLog(records("ab" * 10))
    batcher = Batcher(refuse, key=key_of, clock=fake_clock, on_failure="crash")
    pipe = flow.pipe(MemorySource(log, clock=fake_clock), batcher)
    with pytest.raises(BatcherBroken):
        await pipe.run()
    assert log.start(P0).offset == 0


async def test_a_pipe_runs_once_and_shows_itself_before_and_after(fake_clock: FakeClock) -> None:
    log = MemoryLog(records("ab"))
    pipe = piped(log, Destination(), fake_clock)
    assert not pipe.ready
    with pytest.raises(ClosedError):
        pipe.stats()
    await pipe.run()
    assert pipe.stats().source.counts.acked == 2
    assert pipe.stats().batcher.tally.delivered == 2
    with pytest.raises(Exception, match="opened before"):
        await pipe.run()


async def test_the_end_of_the_source_ends_a_pipe_whose_write_ends_after_its_items(
    fake_clock: FakeClock,
) -> None:
    """A sink may settle items before it returns; the last write is awaited, and ends the pipe."""
    sink = Destination()

    async def settle(batch: Batch[Any]) -> None:
        batch.settle(range(len(batch)), Outcome.DELIVERED)
        await fake_clock.sleep(1.0)

    sink.before = settle
    async with asyncio.timeout(60.0):
        report = await piped(MemoryLog(records("abc")), sink, fake_clock).run()
    assert sink.offsets == [0, 1, 2]
    assert report.complete
