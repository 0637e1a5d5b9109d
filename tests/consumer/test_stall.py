"""A consumer that has work but settles nothing: the pure detector, and the warning.

White box: the detector without a consumer.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

import pytest
from consumer_help import P0, Recorder, log_of, records
from hypothesis import given
from hypothesis import strategies as st
from watch_help import Gate, running

from sluicegate import Nak
from sluicegate.consumer import MemoryLog, MemorySource, Record
from sluicegate.consumer.operating.stats import StallDetector

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from sluicegate import Message
    from sluicegate.consumer import SourceClaim
    from sluicegate.testing import FakeClock


def test_work_without_progress_for_long_enough_is_a_stall() -> None:
    """consumer/C:N5."""
    detector = StallDetector(60.0)
    assert detector.look(0.0, 5, has_work=True) is None
    assert detector.look(59.9, 5, has_work=True) is None
    assert detector.look(60.0, 5, has_work=True) == "stalled"
    assert detector.look(61.0, 5, has_work=True) is None
    assert detector.is_stalled
    assert detector.idle_for(61.0) == 61.0
    assert detector.look(62.0, 6, has_work=True) == "moves"
    assert detector.look(122.0, 6, has_work=True) == "stalled"


def test_time_without_work_does_not_count() -> None:
    """consumer/C:N5."""
    detector = StallDetector(60.0)
    detector.look(0.0, 5, has_work=True)
    detector.look(50.0, 5, has_work=False)
    assert detector.look(100.0, 5, has_work=True) is None
    assert detector.look(159.0, 5, has_work=True) is None
    assert detector.look(160.0, 5, has_work=True) == "stalled"
    assert detector.look(161.0, 5, has_work=False) == "moves", "paused, or given up"


def test_without_a_limit_nothing_is_a_stall() -> None:
    detector = StallDetector(None)
    assert detector.look(0.0, 0, has_work=True) is None
    assert detector.look(1e9, 0, has_work=True) is None


@given(
    st.lists(st.tuples(st.floats(0.1, 30.0), st.booleans(), st.booleans()), min_size=1, max_size=40)
)
def test_a_stall_is_told_once_and_ended_once(
    steps: list[tuple[float, bool, bool]],
) -> None:
    """`stalled` and `moves` alternate, and a stall covers at least its time without progress."""
    detector, now, settled, still_since = StallDetector(20.0), 0.0, 0, 0.0
    changes: list[str] = []
    for seconds, settles, has_work in steps:
        now += seconds
        settled += settles
        if settles or not has_work:
            still_since = now
        change = detector.look(now, settled, has_work=has_work)
        if change == "stalled":
            assert now - still_since >= 20.0 - 30.0 * 1e-9
        changes += [] if change is None else [change]
    assert changes == [("stalled", "moves")[place % 2] for place in range(len(changes))]


# -- in a consumer ---------------------------------------------------------------------------------


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [
        record.getMessage()
        for record in caplog.records
        if "although there is" in record.getMessage()
    ]


async def test_a_stall_is_logged_with_its_explanation_until_progress(
    fake_clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    """consumer/C:N5."""
    caplog.set_level(logging.INFO)
    gate = Gate()
    async with running(fake_clock, log_of("a"), gate, name="billing", stall_after=60) as consumer:
        await fake_clock.advance(59.0)
        assert not consumer.stalled
        await fake_clock.advance(5.0)
        assert consumer.stalled
        (warning,) = warnings(caplog)
        assert warning.startswith("billing: nothing has been settled for 60 s although")
        assert "oldest: offset 0, key 'a'" in warning
        await fake_clock.advance(300.0)
        assert len(warnings(caplog)) == 1
        gate.open()
        await fake_clock.advance(2.0)
        assert not consumer.stalled
        assert "billing: no longer stalled" in caplog.messages


async def test_without_a_time_no_stall_is_looked_for(fake_clock: FakeClock) -> None:
    async with running(fake_clock, log_of("a"), Gate(), stall_after=None) as consumer:
        await fake_clock.advance(1000.0)
        assert not consumer.stalled
        assert consumer.explain().partitions[0].causes[0].seconds == pytest.approx(1000.0, abs=1.0)


async def test_failed_tries_are_no_progress(fake_clock: FakeClock) -> None:
    """consumer/C:N5."""

    async def handle(message: Message) -> Nak:
        return Nak(1.0)

    policy = {"stall_after": 10.0, "poison": "block"}
    async with running(fake_clock, log_of("a"), handle, **policy) as consumer:
        await fake_clock.advance(12.0)
        assert consumer.stalled


async def test_an_idle_and_a_paused_consumer_are_not_stalled(fake_clock: FakeClock) -> None:
    """consumer/C:N5."""
    log = MemoryLog([*records("a"), *records("b", 1)])
    async with running(fake_clock, log, Recorder(), stall_after=10.0) as consumer:
        await fake_clock.advance(100.0)
        assert not consumer.stalled
        consumer.pause(P0)
        log.append(Record("t", 0, 1))
        await fake_clock.advance(100.0)
        assert not consumer.stalled
        assert (await consumer.lag())[P0].messages == 1


class Deadlocked(MemorySource):
    """Fetches no more records, as clients do after a failed rebalance."""

    asked = 0

    async def fetch(self, claims: Sequence[SourceClaim], most: int) -> None:
        await asyncio.Event().wait()

    async def ends(self, claims: Collection[SourceClaim]) -> Mapping[SourceClaim, int]:
        self.asked += 1
        return await super().ends(claims)


async def test_a_source_that_delivers_nothing_of_its_backlog_is_found(
    fake_clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    """consumer/C:N5: connected and assigned, but silent. The end offsets are read sparingly."""
    source = Deadlocked(log_of(*"abc"), clock=fake_clock)
    async with running(fake_clock, source, Recorder(), stall_after=60.0) as consumer:
        assert consumer.ready
        await fake_clock.advance(80.0)
        assert consumer.stalled
        assert len(warnings(caplog)) == 1
        assert source.asked <= 7


class Hanging(MemorySource):
    """Never returns its end offsets, or raises."""

    error: Exception | None = None

    async def ends(self, claims: Collection[SourceClaim]) -> Mapping[SourceClaim, int]:
        if self.error is None:
            await asyncio.Event().wait()
        raise self.error or AssertionError


@pytest.mark.parametrize("error", [None, ConnectionError("gone")])
async def test_a_source_that_does_not_tell_its_ends_ends_nothing(
    fake_clock: FakeClock, error: Exception | None
) -> None:
    """consumer/C:N5: no false alarm, and the sampler continues."""
    source = Hanging(log_of("a"), clock=fake_clock)
    source.error = error
    gate = Gate(a=None)
    async with running(fake_clock, source, gate, stall_after=60.0) as consumer:
        await fake_clock.advance(200.0)
        assert not consumer.stalled
        assert consumer.alive
        source.log.append(Record("t", 0, 1, "b"))
        source._news.fire()
        await fake_clock.advance(75.0)
        assert consumer.stalled


async def test_a_drain_is_no_stall(fake_clock: FakeClock) -> None:
    """consumer/C:N5."""
    async with running(fake_clock, log_of("a"), Gate(), stall_after=5.0, drain=100.0) as consumer:
        consumer.stop()
        await fake_clock.advance(50.0)
        assert not consumer.stalled
