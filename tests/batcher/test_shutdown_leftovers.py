"""Waiting producers at a shutdown (`admit_waiting`), and items that it could not write
(`last_resort`).
"""

from __future__ import annotations

import asyncio

import pytest

from helpers import Gated, Recording
from sluicegate import Batch, Batcher, ClosedError, Limits, Outcome
from sluicegate.testing import FakeClock


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

    limits = Limits(max_items=1, max_pending_items=200)
    async with Batcher(Gated(), limits=limits, last_resort=hang) as batcher:
        await batcher.add_many(range(5))
        report = await batcher.shutdown(deadline=10.0)
    report.verify()
    assert report.seconds <= 10.0
    assert report.unsent == (1, 2, 3, 4)
