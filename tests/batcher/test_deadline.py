"""A shutdown uses its deadline: attempts continue while there is time, and the verdicts come at its
end.

White box: the arithmetic of the last attempt.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
import tenacity
from hypothesis import given
from hypothesis import strategies as st

from sluicegate import (
    Batch,
    Batcher,
    DeadLetter,
    Limits,
    RefusedError,
    Retry,
    ThrottledError,
    TransientError,
    UnavailableError,
    UnknownOutcomeError,
    stack,
)
from sluicegate._core.delivery.pacing import SHARE, SHORTEST, latest_try, next_try

if TYPE_CHECKING:
    from sluicegate.batcher import ShutdownReport
    from sluicegate.testing import FakeClock

FAULTS: dict[str, Exception] = {
    "unavailable": UnavailableError("connection refused"),
    "refused": RefusedError("read-only", repair="promote the standby"),
    "throttled": ThrottledError("slow down", retry_after=0.5),
    "transient": TransientError("deadlock"),
    "unknown": UnknownOutcomeError("connection lost"),
}


class Letters:
    """Accepts every record."""

    def __init__(self) -> None:
        self.items: list[int] = []

    async def write(self, batch: Batch[Any]) -> None:
        self.items += [record.item for record in batch]


class Destination:
    """Fails from `begins` to `ends`; an attempt takes `seconds`."""

    def __init__(
        self, clock: FakeClock, begins: float, ends: float, error: Exception, seconds: float
    ) -> None:
        self._clock = clock
        self._times = begins, ends
        self._error = error
        self._seconds = seconds
        self.applied: list[int] = []
        self.tries: list[float] = []

    async def write(self, batch: Batch[int]) -> None:
        begins, ends = self._times
        self.tries.append(self._clock.now())
        await asyncio.sleep(self._seconds)
        if begins <= self._clock.now() < ends:
            raise self._error
        self.applied += batch


async def drained(
    clock: FakeClock, destination: Destination, *, workers: int, deadline: float = 8.0
) -> tuple[ShutdownReport[int], Letters]:
    """Shut down with 200 pending items when the fault begins."""
    letters = Letters()
    limits = Limits(max_items=50, workers=workers, max_delay=5.0)
    sink = stack(destination, Retry(attempts=1_000), DeadLetter(letters))
    async with Batcher(sink, limits=limits) as batcher:
        await batcher.add_many(range(200))
        await clock.advance(10.0)
        await batcher.add_many(range(200, 400))
        report = await batcher.shutdown(deadline=deadline)
    report.verify()
    return report, letters


@pytest.mark.parametrize("workers", [1, 4])
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("lasts", [0.1, 2.0, 5.0])
async def test_what_a_fault_delays_is_delivered_while_time_is_left(
    fake_clock: FakeClock, fault: str, lasts: float, workers: int
) -> None:
    """batcher/4b.3: a connection is terminated as the drain begins, and the destination recovers
    before the deadline.
    """
    destination = Destination(fake_clock, 10.0, 10.0 + lasts, FAULTS[fault], 0.01)
    report, letters = await drained(fake_clock, destination, workers=workers)
    assert report.complete
    assert report.tally.delivered == 400
    assert sorted(destination.applied) == list(range(400))
    assert letters.items == []
    assert lasts < report.seconds < 7.0
    assert report.spent.drain == pytest.approx(report.seconds)
    assert report.spent.retries > 0


@pytest.mark.parametrize("workers", [1, 4])
@pytest.mark.parametrize("fault", FAULTS)
async def test_the_time_is_used_to_its_end_and_then_what_is_left_has_its_verdict(
    fake_clock: FakeClock, fault: str, workers: int
) -> None:
    """batcher/4b.2, batcher/4b.3: never dead-lettered; unknown only if an attempt was cut off at
    the destination.
    """
    destination = Destination(fake_clock, 10.0, 1e9, FAULTS[fault], 0.01)
    report, letters = await drained(fake_clock, destination, workers=workers)
    assert 6.9 < report.seconds <= 8.0
    assert max(destination.tries) > 10.0 + 6.7
    assert len(destination.tries) < 4 + 60 * workers
    assert letters.items == []
    left = report.tally.unsent + report.tally.unknown
    assert (report.tally.delivered, left) == (200, 200)
    if fault == "unknown":
        assert report.tally.unknown == 50 * workers  # attempted batches; others were never sent
    else:
        assert sorted(report.unsent) == list(range(200, 400))
    assert report.spent.drain > 6.9
    if fault not in {"transient", "unknown"}:
        assert report.spent.destination[fault] > 6.5
    assert report.spent.last_error.startswith(type(FAULTS[fault]).__name__)
    assert f"last error {type(FAULTS[fault]).__name__}" in str(report)


async def test_no_try_is_begun_that_would_be_cut_off(fake_clock: FakeClock) -> None:
    """An attempt that is expected to exceed the remaining time would make unsent items unknown."""
    destination = Destination(fake_clock, 10.0, 1e9, TransientError("slow to fail"), 1.5)
    report, _ = await drained(fake_clock, destination, workers=1)
    assert report.tally.unknown == 0
    assert report.tally.unsent == 200
    assert max(destination.tries) + 1.5 < 17.0


async def test_what_was_tried_early_for_a_shutdown_is_not_used_up_by_it(
    fake_clock: FakeClock,
) -> None:
    """Five attempts a hundred seconds apart are not ten attempts in eight seconds: the item is
    returned instead of dead-lettered.
    """
    letters = Letters()

    async def broken(batch: Batch[int]) -> None:
        raise TransientError("not now")

    sink = stack(broken, Retry(attempts=3, backoff=tenacity.wait_fixed(100.0)), DeadLetter(letters))
    async with Batcher(sink, limits=Limits(max_items=1)) as batcher:
        await batcher.add(1)
        await fake_clock.advance(1.0)
        report = await batcher.shutdown(deadline=8.0)
    assert report.unsent == (1,)
    assert letters.items == []


@pytest.mark.parametrize(("retry_after", "tries"), [(3.0, [1.0, 4.0]), (60.0, [1.0, 2.0])])
async def test_a_wait_that_the_destination_asked_for_is_kept_if_it_fits(
    fake_clock: FakeClock, retry_after: float, tries: list[float]
) -> None:
    """If `Retry-After` ends after the deadline, the batch is tried at once and after shortened
    waits.
    """
    steps = iter([ThrottledError("slow down", retry_after=retry_after)])
    calls: list[float] = []

    async def once(batch: Batch[int]) -> None:
        calls.append(round(fake_clock.now(), 6))
        for error in steps:
            raise error

    async with Batcher(stack(once, Retry()), limits=Limits(max_items=1)) as batcher:
        await fake_clock.advance(1.0)
        await batcher.add(1)
        await fake_clock.advance(1.0)
        report = await batcher.shutdown(deadline=8.0)
    assert report.complete
    assert calls == tries


async def test_an_earlier_deadline_is_heard_by_what_waits(fake_clock: FakeClock) -> None:
    destination = Destination(fake_clock, 0.0, 1e9, UnavailableError("gone"), 0.0)
    async with Batcher(stack(destination, Retry()), limits=Limits(max_items=1)) as batcher:
        await batcher.add(1)
        long = asyncio.create_task(batcher.shutdown(deadline=1_000.0))
        await fake_clock.advance(10.0)
        report = await batcher.shutdown(deadline=2.0)
        assert report is await long
    assert report.unsent == (1,)
    assert 11.5 < fake_clock.now() <= 12.0


times = st.floats(min_value=0.0, max_value=1e4, allow_nan=False)


@given(
    now=times, wait=times, left=times, asked=times, lasts=st.floats(min_value=0.0, max_value=100.0)
)
def test_a_shortened_wait_ends_in_time_for_a_try(
    now: float, wait: float, left: float, asked: float, lasts: float
) -> None:
    cut_at = now + left
    when = next_try(now, now + wait, cut_at, not_before=now + asked, lasts=lasts)
    if when is None:
        assert now >= latest_try(cut_at, lasts)
        return
    latest = latest_try(cut_at, lasts)
    assert when <= latest
    assert when >= min(now + asked, latest) or now + asked > latest
    assert when <= max(now + max(SHARE * (latest - now), SHORTEST), now + asked) + 1e-9


def test_the_number_of_shortened_waits_is_bounded() -> None:
    """24 waits fit into 24 seconds, as the module states."""
    now, waits = 0.0, 0
    while (when := next_try(now, 1e9, 24.0)) is not None:
        now, waits = when, waits + 1
    assert waits == 24
