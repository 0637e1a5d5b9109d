"""Shutting down a batcher: bounded by its deadline, with an exact report, and final."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.properties import examples

from helpers import Deaf, Gated, Recording
from sluicegate import Batch, Batcher, ClosedError, DrainTimeout, Limits, Outcome, PermanentError
from sluicegate.batcher import ShutdownReport
from sluicegate.testing import FakeClock

SINGLES = Limits(max_items=1, max_pending_items=200)


async def test_a_slow_sink_and_a_short_deadline_give_an_exact_report(fake_clock: FakeClock) -> None:
    """B-T5, batcher/B14: items that never reached the sink are returned, items whose write was cut
    are unknown.
    """
    sink = Recording(seconds=1.0)
    batcher = Batcher(
        sink, limits=Limits(max_items=10, max_pending_items=200), shutdown_deadline=0.1
    )
    with pytest.raises(DrainTimeout) as caught:
        async with batcher:
            await batcher.add_many(range(100))
            await fake_clock.advance(2.5)
    report = batcher.report
    assert report is not None
    assert caught.value.report is report
    assert fake_clock.now() <= 2.6
    assert (report.tally.delivered, report.tally.unknown, report.tally.unsent) == (20, 10, 70)
    assert report.unsent == tuple(range(30, 100))
    assert report.unknown == tuple(range(20, 30))
    report.verify()
    assert (
        report.tally.enqueued
        == report.tally.flushed_ok + report.tally.flushed_fail + report.tally.dropped_on_shutdown
    )


async def test_ten_shutdowns_at_once_are_one(fake_clock: FakeClock) -> None:
    """B-T6, batcher/B12, batcher/4a.13."""
    sink = Recording(seconds=1.0)
    async with Batcher(sink) as batcher:
        await batcher.add("a")
        reports = await asyncio.gather(*(batcher.shutdown() for _ in range(10)))
    assert len(set(map(id, reports))) == 1
    assert reports[0].complete
    assert sink.batches == [("a",)]
    with pytest.raises(ClosedError):
        await batcher.add("b")
    assert not batcher.try_add("b")


async def test_the_earliest_deadline_wins(fake_clock: FakeClock) -> None:
    """design 4."""
    async with Batcher(Gated()) as batcher:
        await batcher.add("a")
        slow = asyncio.create_task(batcher.shutdown(deadline=20.0))
        await fake_clock.run_until_idle()
        report = await batcher.shutdown(deadline=1.0)
        assert await slow is report
        assert fake_clock.now() <= 1.0


@examples(40, long=500)
@given(
    producers=st.lists(st.lists(st.integers(0, 3), max_size=6), min_size=1, max_size=4),
    shutdown_after=st.integers(0, 12),
    workers=st.integers(1, 3),
    write_seconds=st.sampled_from([0.0, 0.01, 0.5]),
    deadline=st.sampled_from([0.0, 0.1, 5.0]),
)
def test_adds_racing_a_shutdown_are_written_or_in_the_report(
    producers: list[list[int]],
    shutdown_after: int,
    workers: int,
    write_seconds: float,
    deadline: float,
) -> None:
    """B-T7: in any interleaving, an add that returned is in the sink or in the report, and no item
    is in twice.
    """
    accepted: list[tuple[int, int]] = []
    sink = Recording(seconds=write_seconds)

    async def produce(batcher: Batcher[tuple[int, int]], number: int, pauses: list[int]) -> None:
        for count, pause in enumerate(pauses):
            for _ in range(pause):
                await asyncio.sleep(0)
            try:
                await batcher.add((number, count))
            except ClosedError:
                return
            accepted.append((number, count))

    async def main() -> ShutdownReport[tuple[int, int]]:
        limits = Limits(max_items=2, workers=workers, max_pending_items=2 * (workers + 1))
        async with Batcher(sink, limits=limits) as batcher:
            tasks = [
                asyncio.create_task(produce(batcher, n, pauses))
                for n, pauses in enumerate(producers)
            ]
            for _ in range(shutdown_after):
                await asyncio.sleep(0)
            report = await batcher.shutdown(deadline=deadline)
            await asyncio.gather(*tasks)
        return report

    with FakeClock() as clock:
        report = clock.run(main())
    report.verify()
    assert report.tally.accepted == len(accepted)
    assert sorted([*sink.items, *report.unsent, *report.unknown]) == sorted(accepted)


async def test_a_sink_that_ignores_cancellation_cannot_hold_the_shutdown(
    fake_clock: FakeClock,
) -> None:
    """batcher/4b.2: it ends exactly at its deadline, and later results of the sink have no
    effect.
    """
    sink = Deaf(seconds=100.0)
    batcher = Batcher(sink, limits=SINGLES)
    async with batcher:
        receipts = [await batcher.submit(i) for i in range(3)]
        await fake_clock.run_until_idle()
        report = await batcher.shutdown(deadline=2.0)
    assert fake_clock.now() == 2.0
    assert (report.tally.unknown, report.tally.unsent, report.left_behind) == (1, 2, 1)
    assert receipts[0].outcome is Outcome.UNKNOWN
    report.verify()
    before = (report, batcher.tally())
    await fake_clock.advance(200.0)
    assert sink.items == [0]
    assert (report, batcher.tally()) == before
    assert batcher.report is report


async def test_shutdown_in_a_cancelled_body_still_drains_and_a_second_cancellation_means_now(
    fake_clock: FakeClock,
) -> None:
    """design 4."""
    sink = Recording(seconds=3.0)
    batcher = Batcher(sink, limits=SINGLES)

    async def body() -> None:
        async with batcher:
            await batcher.add_many(range(5))
            await asyncio.Event().wait()

    task = asyncio.create_task(body())
    await fake_clock.advance(1.0)
    task.cancel()
    await fake_clock.advance(3.0)
    assert not task.done()
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
    assert fake_clock.now() == 4.0
    assert batcher.report is not None
    assert (
        batcher.report.tally.delivered + batcher.report.tally.unsent + batcher.report.tally.unknown
        == 5
    )


async def test_a_body_that_fails_keeps_its_error_and_gets_a_note(fake_clock: FakeClock) -> None:
    """The report does not hide the first error."""
    with pytest.raises(RuntimeError, match="mine") as caught:
        async with Batcher(Gated(), shutdown_deadline=1.0) as batcher:
            await batcher.add("a")
            raise RuntimeError("mine")
    assert "INCOMPLETE" in caught.value.__notes__[0]


async def test_the_error_says_what_ended_the_shutdown(fake_clock: FakeClock) -> None:
    """This is not the deadline if the batcher had failed before, or the shutdown was cancelled."""
    sink = Gated()
    batcher = Batcher(sink, limits=Limits(max_items=1), clock=fake_clock)
    with pytest.raises(
        DrainTimeout, match=r"the drain was incomplete: .* \(ended by the deadline\): 2"
    ):
        async with batcher:
            await batcher.add_many([1, 2])

    await batcher.__aenter__()
    await batcher.add_many([1, 2])
    ending = asyncio.ensure_future(batcher.shutdown())
    await fake_clock.advance(1.0)
    ending.cancel()
    with pytest.raises(asyncio.CancelledError):
        await ending
    assert batcher.report is not None
    assert batcher.report.ended_by == "a cancellation"
    assert "after 1.000 s (ended by a cancellation): 2 accepted" in str(batcher.report)

    async def fails(batch: Batch[int]) -> None:
        raise PermanentError("no")

    broken = Batcher(fails, limits=Limits(max_items=1), on_failure="crash", clock=fake_clock)
    with pytest.raises(DrainTimeout, match=r"ended by the failure that had broken .*: Permanent"):
        async with broken:
            await broken.add_many([1, 2])

    done = Batcher(Recording(), clock=fake_clock)
    async with done:
        await done.add(1)
    assert done.report is not None
    assert done.report.ended_by == ""


async def test_nothing_is_left_running_after_a_shutdown(fake_clock: FakeClock) -> None:
    """I9: no task and no timer of the batcher."""
    async with Batcher(Recording(seconds=0.1), limits=Limits(max_items=3, workers=2)) as batcher:
        await batcher.add_many(range(10))
    assert asyncio.all_tasks() == {asyncio.current_task()}
    # the fixture checks that no timer is left


async def test_a_batcher_can_be_opened_again(fake_clock: FakeClock) -> None:
    """With a new tally."""
    sink = Recording()
    batcher = Batcher(sink)
    for _ in range(2):
        async with batcher:
            await batcher.add("a")
        assert batcher.tally().delivered == 1
    assert sink.items == ["a", "a"]
