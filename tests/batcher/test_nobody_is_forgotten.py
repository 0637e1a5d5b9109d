"""Every waiter of a batcher resumes eventually, even if the batcher breaks or ends with a last
resort.
"""

from __future__ import annotations

import asyncio

import pytest

from helpers import Deaf, Gated, Recording
from sluicegate import (
    Backoff,
    Batch,
    Batcher,
    Limits,
    Outcome,
    PermanentError,
    Retry,
    TransientError,
    stack,
)
from sluicegate.errors import BatcherBroken
from sluicegate.testing import FakeClock, ScriptedSink, fail, hang

SINGLES = Limits(max_items=1, workers=2, max_pending_items=10)


class Steady(Backoff):
    """Waits for one second."""

    def __call__(
        self, tries: int, error: BaseException | None = None, waited: float = 0.0
    ) -> float:
        return 1.0


async def test_a_flush_of_a_batcher_that_breaks_is_told_at_once(fake_clock: FakeClock) -> None:
    """B-T50: even if another write never ends."""
    sink: ScriptedSink[str] = ScriptedSink([hang(), fail(PermanentError("no"))])
    async with Batcher(sink, limits=SINGLES, on_failure="crash", shutdown_deadline=0.0) as batcher:
        await batcher.add("a")
        flush = asyncio.create_task(batcher.flush())
        await fake_clock.run_until_idle()
        assert not flush.done()
        await batcher.add("b")
        with pytest.raises(BatcherBroken):
            await flush
        assert fake_clock.now() == 0.0
        await batcher.shutdown()


async def test_a_batch_that_backs_off_comes_back_to_a_batcher_that_broke_meanwhile(
    fake_clock: FakeClock,
) -> None:
    """B-T50: batches in flight continue; no new one starts."""
    sink: ScriptedSink[str] = ScriptedSink(
        [fail(TransientError("once")), fail(PermanentError("no"))]
    )
    async with Batcher(
        stack(sink, Retry(backoff=Steady())), limits=SINGLES, on_failure="crash"
    ) as batcher:
        receipt = await batcher.submit("a")
        await fake_clock.run_until_idle()
        await batcher.add("b")
        await fake_clock.advance(1.0)
        assert receipt.outcome is Outcome.DELIVERED
        assert (await batcher.shutdown()).seconds == 0.0


@pytest.mark.parametrize("takes", [True, False])
async def test_a_flush_ends_with_the_last_resort(fake_clock: FakeClock, takes: bool) -> None:
    """batcher/4b.4: not before the items of a batch that was cut in its backoff have their
    outcome.
    """
    outage: ScriptedSink[str] = ScriptedSink(default=fail(TransientError("down")))
    rest = Recording() if takes else Deaf(100.0)
    limits = Limits(max_items=2, max_delay=60.0)
    sink = stack(outage, Retry(attempts=100, backoff=Steady()))
    async with Batcher(sink, limits=limits, last_resort=rest, shutdown_deadline=10.0) as batcher:
        await batcher.add_many(["a", "b"])
        flush = asyncio.create_task(batcher.flush())
        await fake_clock.run_until_idle()
        await batcher.shutdown()
        report = await flush
        assert report.complete
        assert report.outcomes == {Outcome.DEAD_LETTERED if takes else Outcome.UNSENT: 2}
        await fake_clock.advance(100.0)


async def test_a_deaf_last_resort_does_not_hold_the_shutdown(fake_clock: FakeClock) -> None:
    """batcher/4b.2: the deadline holds, the items are returned, and later results of the last
    resort have no effect.
    """
    rest = Deaf(100.0)
    batcher = Batcher(Gated(), limits=Limits(max_items=1, max_pending_items=10), last_resort=rest)
    async with batcher:
        receipts = [await batcher.submit(item) for item in "abc"]
        report = await batcher.shutdown(deadline=1.0)
        assert fake_clock.now() <= 1.0
        assert report.unsent == ("b", "c")
        outcomes = [await receipt.settled() for receipt in receipts]
        assert outcomes == [Outcome.UNKNOWN, Outcome.UNSENT, Outcome.UNSENT]
        await fake_clock.advance(200.0)
        assert rest.items == ["b"]
        assert batcher.tally() == report.tally


async def test_a_shutdown_wanted_now_does_not_wait_for_the_last_resort(
    fake_clock: FakeClock,
) -> None:
    """design 4: the earliest deadline applies, in every phase of the shutdown."""
    called = asyncio.Event()

    async def rest(batch: Batch[str]) -> None:
        called.set()
        await asyncio.Event().wait()

    async with Batcher(
        Gated(), limits=Limits(max_items=1, max_pending_items=10), last_resort=rest
    ) as batcher:
        await batcher.add_many(list("abc"))
        slow = asyncio.create_task(batcher.shutdown(deadline=20.0))
        await called.wait()
        began = fake_clock.now()
        assert (await batcher.shutdown(deadline=0.0)).unsent == ("b", "c")
        assert fake_clock.now() == began
        await slow


async def test_nothing_is_dropped_for_items_that_do_not_get_in_all_the_same(
    fake_clock: FakeClock,
) -> None:
    """B-T9: dropping all queued items would not make enough room for them."""
    sink = Gated()
    async with Batcher(
        sink,
        limits=Limits(max_items=2, max_pending_items=4, max_delay=60.0),
        overflow="drop_oldest",
    ) as batcher:
        await batcher.add_many(range(3))
        await fake_clock.run_until_idle()
        await batcher.add_many(range(10, 13))
        assert batcher.tally().dropped == 3
        await batcher.add_many([20, 21])
        assert batcher.tally().dropped == 4
        sink.gate.set()
    assert sink.items == [0, 1, 20, 21]
