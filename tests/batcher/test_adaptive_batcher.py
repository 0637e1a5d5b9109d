"""An adaptive batcher: the signals of its writes, and the effect of new settings."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, ClassVar

import pytest
from gatherers import Plain

from helpers import Gated, Recording
from sluicegate import (
    Batch,
    Batcher,
    BlockingBatcher,
    ConfigError,
    DeadLetter,
    Limits,
    Observer,
    Outcome,
    PermanentError,
    Retry,
    ThrottledError,
    Timeout,
    WriteResult,
    stack,
)
from sluicegate.batcher import Adaptive, Reason
from sluicegate.errors import TooLargeError
from sluicegate.sinks import Isolate, MemorySink, RateLimit

if TYPE_CHECKING:
    from sluicegate.testing import FakeClock

LIMITS = Limits(max_items=100, workers=4, max_pending_items=2000)


async def fill(batcher: Batcher[int], batches: int) -> None:
    for number in range(batches * 100):
        await batcher.add(number)
    await batcher.flush()


async def test_workers_grow_while_all_are_busy(fake_clock: FakeClock) -> None:
    """batcher/4a.11: from one to the limit, visible in `stats()` and at the destination; the limits
    stay unchanged.
    """
    sink = Recording(0.1)
    async with Batcher(sink, limits=LIMITS, adaptive=Adaptive()) as batcher:
        assert batcher.stats().workers == 1
        await fill(batcher, 40)
        assert batcher.stats().workers == 4
        assert batcher.limits == LIMITS
    assert sink.most_running == 4


async def test_each_change_is_told(fake_clock: FakeClock, caplog: pytest.LogCaptureFixture) -> None:
    """batcher/4a.12: to observers, and to the log at a level that is off by default."""

    class Settings(Observer):
        seen: ClassVar[list[tuple[str, int, int]]] = []

        def on_adapted(self, name: str, workers: int, max_items: int) -> None:
            self.seen.append((name, workers, max_items))

    caplog.set_level("DEBUG", "sluicegate.batcher")
    async with Batcher(
        Recording(0.1), limits=LIMITS, adaptive=Adaptive(), observers=[Settings()], name="audit"
    ) as batcher:
        await fill(batcher, 40)
    assert Settings.seen == [("audit", 2, 100), ("audit", 3, 100), ("audit", 4, 100)]
    told = [record.getMessage() for record in caplog.records if record.levelname == "DEBUG"]
    assert told[0] == "batcher 'audit' adapts: workers 1 -> 2, max_items 100 -> 100"
    assert len(told) == 3


async def test_without_it_everything_stays(fake_clock: FakeClock) -> None:
    """batcher/4a.11: off by default."""
    sink = Recording(0.1)
    async with Batcher(sink, limits=LIMITS) as batcher:
        await fill(batcher, 20)
        assert (batcher.stats().workers, batcher.stats().max_items) == (4, 100)
    assert {len(batch) for batch in sink.batches} == {100}


async def test_one_worker_keeps_order_while_the_size_changes(fake_clock: FakeClock) -> None:
    """batcher/B22, B-T14: with one worker only the size adapts, and larger sealed batches are cut
    in place.
    """
    calls = 0

    def answer(batch: Batch[Any]) -> None:
        nonlocal calls
        calls += 1
        if calls % 7 == 0:
            raise ThrottledError("slow down", retry_after=0.1)

    sink = Recording(0.1, answer)
    limits = Limits(max_items=100, max_pending_items=2000)
    async with Batcher(stack(sink, Retry()), limits=limits, adaptive=Adaptive()) as batcher:
        await fill(batcher, 40)
        assert batcher.stats().workers == 1
    assert sink.items == list(range(4000))
    assert min(len(batch) for batch in sink.batches) < 60
    assert sink.most_running == 1


async def test_throttles_behind_a_retry_are_heard(fake_clock: FakeClock) -> None:
    """batcher/B45: the batcher sees no failure, since the retry succeeds, but the size is halved.
    Backoffs are not round trips.
    """
    throttled = 0

    def answer(batch: Batch[Any]) -> None:
        nonlocal throttled
        if len(batch) > 60:
            throttled += 1
            raise ThrottledError("slow down", retry_after=1.0)

    async with Batcher(
        stack(Recording(0.1, answer), Retry()), limits=LIMITS, adaptive=Adaptive(start_workers=4)
    ) as batcher:
        adding = asyncio.create_task(fill(batcher, 10))
        await fake_clock.advance(20.0)
        assert batcher.stats().max_items <= 50
        adding.cancel()
        await asyncio.gather(adding, return_exceptions=True)
        await batcher.shutdown(deadline=0.0)
    assert throttled >= 10


@pytest.mark.parametrize("around", [True, False])
async def test_timeouts_are_heard(around: bool, fake_clock: FakeClock) -> None:
    """batcher/B45: of a `Timeout` in the stack, and of the flush timeout around it."""
    sink = stack(Recording(60.0), *([Timeout(1.0)] if around else []))
    limits = Limits(max_items=10, max_delay=0.1, flush_timeout=2.0)
    async with Batcher(sink, limits=limits, adaptive=Adaptive(min_items=1)) as batcher:
        for number in range(110):
            await batcher.add(number)
        await batcher.flush()
        assert batcher.stats().max_items == 5
    assert batcher.tally().unknown == 110


async def test_half_of_the_shortest_timeout_is_how_long_a_growing_batch_may_take(
    fake_clock: FakeClock,
) -> None:
    """batcher/B45: half of the `Timeout` in the stack, not of the flush timeout around it."""
    for seconds, grown in ((0.4, True), (0.6, False)):
        sink = stack(Recording(seconds), Timeout(1.0))
        async with Batcher(
            sink, limits=LIMITS, adaptive=Adaptive(start_items=50, min_workers=4)
        ) as batcher:
            await fill(batcher, 10)
            assert (batcher.stats().max_items > 50) is grown


async def test_bad_items_change_nothing(fake_clock: FakeClock) -> None:
    """decisions 0.3: an error unrelated to load freezes the size, whether or not the dead letters
    accept the item.
    """

    def answer(batch: Batch[Any]) -> WriteResult:
        return WriteResult.failed(batch, {0: PermanentError("a bad row")})

    for decorators in ([], [Retry()], [Retry(), DeadLetter(MemorySink())]):
        async with Batcher(
            stack(Recording(0.1, answer), *decorators), limits=LIMITS, adaptive=Adaptive()
        ) as batcher:
            await fill(batcher, 30)
            assert (batcher.stats().workers, batcher.stats().max_items) == (1, 100)


async def test_too_large_is_heard_though_the_batch_is_saved(fake_clock: FakeClock) -> None:
    """batcher/B45: a decorator that splits the batch also reports the original error."""

    def answer(batch: Batch[Any]) -> None:
        if len(batch) > 30:
            raise TooLargeError("413")

    sink = Recording(0.01, answer)
    async with Batcher(stack(sink, Isolate()), limits=LIMITS, adaptive=Adaptive()) as batcher:
        await fill(batcher, 100)
        assert batcher.stats().max_items <= 30
    assert sorted(sink.items) == list(range(10_000))


async def test_waiting_for_a_rate_limit_is_no_round_trip(fake_clock: FakeClock) -> None:
    """An attempt that ends in a wait, without an error, is ignored: it did not reach the
    destination.
    """
    sink = stack(Recording(0.1), RateLimit(2500, burst=100))
    async with Batcher(sink, limits=LIMITS, adaptive=Adaptive()) as batcher:
        await fill(batcher, 60)
        assert (batcher.stats().workers, batcher.stats().max_items) == (4, 100)


async def test_a_shutdown_is_no_objection(fake_clock: FakeClock) -> None:
    """batcher/4b.10: cancellation is neutral."""
    sink = Gated()
    async with Batcher(sink, limits=LIMITS, adaptive=Adaptive(start_workers=4)) as batcher:
        for number in range(2000):
            batcher.try_add(number)
        report = await batcher.shutdown(deadline=1.0)
        assert (batcher.stats().workers, batcher.stats().max_items) == (4, 100)
        assert report.tally.accepted == report.tally.unknown + report.tally.unsent


async def test_receipts_and_flushes_survive_a_cut(fake_clock: FakeClock) -> None:
    """batcher/4b.1, 4b.4: a batch that is cut when it is taken keeps every receipt, and a flush
    waits for all its parts.
    """
    sink = Gated()
    async with Batcher(
        sink, limits=Limits(max_items=10, max_pending_items=1000), adaptive=Adaptive(min_items=1)
    ) as batcher:
        receipts = [await batcher.submit(number) for number in range(40)]
        batcher._dispatcher.gathering.shape.resize(3)
        batcher._dispatcher.advance(fake_clock.now())
        flushing = asyncio.create_task(batcher.flush())
        await fake_clock.run_until_idle()
        assert not flushing.done()
        sink.gate.set()
        report = await flushing
        assert report.outcomes == {Outcome.DELIVERED: 40}
        assert [await receipt for receipt in receipts] == [Outcome.DELIVERED] * 40
    assert sink.items == list(range(40))


def test_a_cut_keeps_sizes_receipts_and_times() -> None:
    gatherer = Plain[str](max_items=5, max_bytes=None, max_delay=1.0, sized=True)
    for number, item in enumerate("abcde"):
        gatherer.offer_one(item, number, None, 1.0 + number)
    for item in "fg":
        gatherer.offer_one(item, 1, None, 7.0)
    gatherer.resize(2, 8.0)
    taken = [gatherer.take(8.0) for _ in range(5)]
    assert [batch.items for batch in taken if batch] == [["a", "b"], ["c", "d"], ["e"], ["f", "g"]]
    assert [batch.sizes for batch in taken if batch] == [[0, 1], [2, 3], [4], [1, 1]]
    assert [batch.bytes for batch in taken if batch] == [1, 5, 4, 2]
    assert [batch.oldest_at for batch in taken if batch] == [1.0, 1.0, 1.0, 7.0]
    assert [batch.number for batch in taken if batch] == [1, 1, 1, 2]
    assert {batch.reason for batch in taken if batch} == {Reason.SIZE}
    assert gatherer.queued == 0


def test_a_blocking_batcher_adapts_too() -> None:
    with BlockingBatcher[int](MemorySink(), limits=LIMITS, adaptive=Adaptive()) as batcher:
        batcher.add(1)
        assert batcher.stats().workers == 1


def test_bad_arguments_are_refused() -> None:
    """batcher/B46."""
    with pytest.raises(ConfigError, match="adaptive=True: must be an Adaptive"):
        Batcher(MemorySink(), adaptive=True)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    with pytest.raises(
        ConfigError, match="start_workers=4: must not be above the limit, which is 1"
    ):
        Batcher(MemorySink(), adaptive=Adaptive(start_workers=4))


async def test_a_drain_is_not_held_to_the_workers_found_so_far(fake_clock: FakeClock) -> None:
    """batcher/4b.3: a shutdown right after the start may use all workers; one worker would take 20
    s.
    """
    sink = Recording(0.1)
    limits = Limits(max_items=10, workers=16, max_pending_items=2000)
    batcher = Batcher[int](sink, limits=limits, adaptive=Adaptive(), shutdown_deadline=5.0)
    async with batcher:
        for number in range(2000):
            await batcher.add(number)
    assert batcher.tally().delivered == 2000
    assert sink.most_running == 16
