"""Shutting down: bounded, exact, final."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import textwrap
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers import Deaf, Gated, Recording
from penstock import (
    Batch,
    Batcher,
    BatcherBroken,
    ClosedError,
    DrainTimeout,
    Limits,
    Outcome,
    PermanentError,
    ShutdownReport,
    WriteResult,
)
from penstock.testing import FakeClock

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


@settings(max_examples=200, deadline=None)
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


async def test_the_flush_timeout_ends_a_hung_write(fake_clock: FakeClock) -> None:
    """B-T32, batcher/B16: its items are unknown, and the next batch continues."""
    calls: list[int] = []

    async def write(batch: Batch[int]) -> None:
        calls.append(batch[0])
        if batch[0] == 0:
            await asyncio.Event().wait()

    async with Batcher(write, limits=Limits(max_items=1, flush_timeout=3.0)) as batcher:
        receipts = [await batcher.submit(i) for i in range(2)]
        assert await receipts[1] is Outcome.DELIVERED
        assert fake_clock.now() == 3.0
        assert receipts[0].outcome is Outcome.UNKNOWN
    assert calls == [0, 1]


async def test_a_deaf_write_keeps_its_slot_until_it_has_ended(fake_clock: FakeClock) -> None:
    """B-T58: its items resolve after the grace, but no second write starts beside it."""
    sink = Deaf(seconds=50.0)
    async with Batcher(sink, limits=Limits(max_items=1, flush_timeout=1.0)) as batcher:
        first = await batcher.submit("a")
        await batcher.add("b")
        with pytest.raises(Exception, match="unknown"):
            await first
        assert fake_clock.now() == pytest.approx(1.1)
        await fake_clock.advance(40.0)
        assert sink.calls == 1
        await fake_clock.advance(60.0)
        assert sink.calls == 2


@pytest.mark.parametrize("error", [ValueError("no"), type("Odd", (BaseException,), {})("odd")])
async def test_whatever_a_sink_raises_fails_its_batch_and_nothing_else(
    fake_clock: FakeClock, error: BaseException
) -> None:
    """B-T31, batcher/B48."""

    async def write(batch: Batch[int]) -> None:
        if batch[0] == 0:
            raise error

    async with Batcher(write, limits=Limits(max_items=1)) as batcher:
        await batcher.add_many(range(2))
    assert batcher.report is not None
    assert (batcher.report.tally.rejected, batcher.report.tally.delivered) == (1, 1)


@pytest.mark.parametrize("answer", [object(), 3, [None], True])
async def test_a_nonsense_answer_is_unknown_and_says_what_to_return(
    fake_clock: FakeClock, answer: Any
) -> None:
    """B-T44: no item counts as delivered."""

    async def write(batch: Batch[int]) -> Any:
        return answer

    async with Batcher(write) as batcher:
        receipt = await batcher.submit(1)
        with pytest.raises(Exception, match="expected None"):
            await receipt
    assert receipt.outcome is Outcome.UNKNOWN


async def test_crash_stops_everything_for_everyone(fake_clock: FakeClock) -> None:
    """batcher/B48, B-T31: later adds fail fast, and shutdown returns."""

    async def write(batch: Batch[int]) -> None:
        raise ValueError("disk on fire")

    async with Batcher(write, limits=Limits(max_items=1), on_failure="crash") as batcher:
        receipts = [await batcher.submit(i) for i in range(3)]
        await asyncio.sleep(1.0)
        with pytest.raises(BatcherBroken, match="disk on fire"):
            await batcher.add(9)
        with pytest.raises(BatcherBroken):
            await batcher.flush()
        report = await batcher.shutdown()
        assert report.unsent == (1, 2)
        assert [receipt.outcome for receipt in receipts] == [
            Outcome.REJECTED,
            Outcome.UNSENT,
            Outcome.UNSENT,
        ]


async def test_a_failure_handler_gets_the_items_and_their_error(fake_clock: FakeClock) -> None:
    """B-T50 in part; a handler that raises breaks the batcher, with an error in the log, and loses
    nothing.
    """
    seen: list[tuple[list[int], str]] = []

    async def write(batch: Batch[int]) -> None:
        raise ValueError("no")

    def handler(items: list[int], error: BaseException) -> None:
        seen.append((items, str(error)))
        if items == [1]:
            raise RuntimeError("handler")

    async with Batcher(write, limits=Limits(max_items=1), on_failure=handler) as batcher:
        await batcher.add_many(range(3))
        await asyncio.sleep(1.0)
        with pytest.raises(BatcherBroken, match="handler"):
            await batcher.add(9)
        report = await batcher.shutdown()
    assert seen == [([0], "no"), ([1], "no")]
    assert report.unsent == (2,)
    report.verify()


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


SCRIPT = """
import asyncio, sys
import penstock

async def write(batch):
    if sys.argv[1] == "deaf":
        while True:
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                print("deaf", flush=True)
    print("wrote", len(batch), flush=True)

async def main():
    async with penstock.Batcher(write, shutdown_deadline=0.5, limits=penstock.Limits(max_delay=3600.0)) as batcher:
        await batcher.add_many(range(7))
        print("ready", flush=True)
        await asyncio.Event().wait()

penstock.run(main(), patience=0.1)
"""


@pytest.mark.parametrize("kind", ["plain", "deaf"])
def test_a_script_drains_on_sigterm_and_ends_even_with_a_deaf_sink(kind: str) -> None:
    """B-T49."""
    child = subprocess.Popen(  # this test's own script
        [sys.executable, "-c", textwrap.dedent(SCRIPT), kind],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "ready\n"
    child.send_signal(signal.SIGTERM)
    out, err = child.communicate(timeout=20)
    if kind == "plain":
        assert out == "wrote 7\n"
        assert child.returncode == 0
    else:
        assert "7 unknown" in err
        assert "left behind" in err
        assert child.returncode == 1


SLOW = """
import asyncio
import penstock

async def write(batch):
    print("writing", flush=True)
    await asyncio.sleep(3600)

async def main():
    async with penstock.Batcher(write, shutdown_deadline=3600.0, limits=penstock.Limits(max_delay=3600.0, flush_timeout=3600.0)) as batcher:
        await batcher.add_many(range(7))
        print("ready", flush=True)
        await asyncio.Event().wait()

print("returned", penstock.run(main()), flush=True)
"""


@pytest.mark.parametrize(
    ("first", "second"), [("SIGTERM", "SIGTERM"), ("SIGTERM", "SIGINT"), ("SIGINT", "SIGINT")]
)
def test_a_second_signal_means_now(first: str, second: str) -> None:
    """design 4: the first signal begins a drain, here with an hour of time; the second ends it, and
    the tally is still reported.
    """
    child = subprocess.Popen(  # this test's own script
        [sys.executable, "-c", textwrap.dedent(SLOW)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "ready\n"
    child.send_signal(signal.Signals[first])
    assert child.stdout.readline() == "writing\n"
    child.send_signal(signal.Signals[second])
    out, err = child.communicate(timeout=20)
    assert (child.returncode, out) == (1, ""), "it does not return as if all were well"
    assert "INCOMPLETE" in err
    assert "7 accepted: 7 unknown" in err.splitlines()[-1]


async def test_a_shutdown_can_let_in_who_was_waiting(fake_clock: FakeClock) -> None:
    """B-T12, batcher/B5: the open batch is written at once with its own reason, and the waiting
    items follow as `shutdown`.
    """
    sink = Recording(seconds=1.0)
    async with Batcher(
        sink, limits=Limits(max_items=4, max_pending_items=8, max_delay=60.0)
    ) as batcher:
        await batcher.add_many(range(6))
        waiting = [
            asyncio.create_task(batcher.add_many((f"{name}1", f"{name}2", f"{name}3")))
            for name in "ab"
        ]
        await fake_clock.run_until_idle()
        closing = asyncio.create_task(batcher.shutdown(admit_waiting=True))
        await fake_clock.run_until_idle()
        with pytest.raises(ClosedError):
            await batcher.add("newcomer")
        report = await closing
        await asyncio.gather(*waiting)
    assert report.complete
    assert report.tally.delivered == 12
    assert sink.items == [0, 1, 2, 3, 4, 5, "a1", "a2", "a3", "b1", "b2", "b3"]
    assert sink.reasons[:2] == ["size", "shutdown_request"]
    assert set(sink.reasons[2:]) <= {"shutdown", "size"}


async def test_who_was_waiting_is_turned_away_at_the_deadline(fake_clock: FakeClock) -> None:
    """The deadline also limits `admit_waiting`."""
    async with Batcher(Gated(), limits=Limits(max_items=2, max_pending_items=4)) as batcher:
        await batcher.add_many(range(4))
        late = asyncio.create_task(batcher.add("late"))
        await fake_clock.run_until_idle()
        report = await batcher.shutdown(deadline=1.0, admit_waiting=True)
        with pytest.raises(ClosedError):
            await late
        assert report.tally.accepted == 4


@pytest.mark.parametrize("takes", [True, False])
async def test_a_last_resort_gets_what_is_known_not_to_be_applied(
    fake_clock: FakeClock, takes: bool
) -> None:
    """design 4, step 5: within a fifth of the deadline; accepted items are dead-lettered, the
    others returned.
    """
    saved: list[tuple[float, int]] = []

    async def keep(batch: Batch[int]) -> None:
        await asyncio.sleep(0.1)
        if not takes:
            raise OSError("disk full")
        saved.extend((fake_clock.now(), item) for item in batch)

    limits = Limits(max_items=3, max_pending_items=60)
    async with Batcher(Gated(), limits=limits, last_resort=keep) as batcher:
        receipts = [await batcher.submit(i) for i in range(10)]
        report = await batcher.shutdown(deadline=10.0)
        outcomes = [receipt.outcome for receipt in receipts]
    report.verify()
    assert report.seconds <= 10.0
    assert report.unknown == (0, 1, 2)
    assert outcomes[3:] == [Outcome.DEAD_LETTERED if takes else Outcome.UNSENT] * 7
    assert [item for _, item in saved] == ([*range(3, 10)] if takes else [])
    assert all(8.0 <= when < 10.0 for when, _ in saved)
    assert report.unsent == (() if takes else tuple(range(3, 10)))


async def test_a_last_resort_that_hangs_does_not_hold_the_shutdown(fake_clock: FakeClock) -> None:
    """Every wait is bounded; conservation holds while items are held."""

    async def hang(batch: Batch[int]) -> None:
        batcher.tally().verify()
        assert batcher.tally().accepted == 5
        await asyncio.Event().wait()

    async with Batcher(Gated(), limits=SINGLES, last_resort=hang) as batcher:
        await batcher.add_many(range(5))
        report = await batcher.shutdown(deadline=10.0)
    report.verify()
    assert report.seconds <= 10.0
    assert report.unsent == (1, 2, 3, 4)


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


async def test_a_flush_is_true_only_if_every_item_is_safe(fake_clock: FakeClock) -> None:
    """It is false after rejections and while items remain."""

    async def sink(batch: Batch[int]) -> WriteResult | None:
        if 2 in batch:
            raise PermanentError("no")
        return None

    async with Batcher(sink, limits=Limits(max_items=1), clock=fake_clock) as batcher:
        await batcher.add(1)
        report = await batcher.flush()
        assert report
        assert report.ok
        await batcher.add_many([1, 2])
        report = await batcher.flush()
        assert not report
        assert report.complete
        assert report.outcomes == {Outcome.DELIVERED: 1, Outcome.REJECTED: 1}
    slow = Batcher(Recording(seconds=5.0), clock=fake_clock)
    async with slow:
        await slow.add(1)
        assert not await slow.flush(timeout=1.0)
