"""The symptoms on the page about operating a batcher are those of a batcher in that state."""

from __future__ import annotations

import logging
import re
from typing import TYPE_CHECKING, Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from tests.examples.example import DOCS

from sluicegate import (
    AddTimeout,
    Batcher,
    Limits,
    RefusedError,
    Retry,
    ThrottledError,
    UnavailableError,
    stack,
)
from sluicegate.flow import Spool
from sluicegate.telemetry import PrometheusObserver
from sluicegate.testing import ScriptedSink, SlowSink, fail, hang

if TYPE_CHECKING:
    from pathlib import Path

    from sluicegate.testing import FakeClock

LIMITS = Limits(max_items=10, max_delay=0.2, max_pending_items=40)


async def test_little_comes_in(fake_clock: FakeClock) -> None:
    """batcher/B57: all batches end by time, and no producer waits."""
    async with Batcher(ScriptedSink[int](), limits=LIMITS) as batcher:
        for number in range(20):
            await batcher.add(number)
            await fake_clock.advance(0.15)
        assert set(batcher.stats().flushes) == {"time"}
        assert batcher.stats().waiting_producers == 0


async def test_the_destination_is_the_bottleneck(fake_clock: FakeClock) -> None:
    """batcher/B57: all batches end by size, every worker writes, and many items are queued and
    late.
    """
    async with Batcher(SlowSink[int](1.0), limits=LIMITS) as batcher:
        for number in range(100):
            await batcher.add(number)
        await fake_clock.advance(0.5)
        stats = batcher.stats()
        assert set(stats.flushes) == {"size"}
        assert stats.in_flight_batches == batcher.limits.workers
        assert stats.tally.queued >= stats.capacity_items / 2
        assert stats.oldest_age is not None
        assert stats.oldest_age > 2 * batcher.limits.delay


@pytest.mark.parametrize(
    ("error", "state", "level", "told"),
    [
        (
            UnavailableError("connection refused"),
            "unavailable",
            logging.WARNING,
            "the destination has been unavailable",
        ),
        (RefusedError("403", repair="grant it"), "refused", logging.ERROR, "to repair: grant it"),
    ],
)
async def test_the_destination_is_away(
    fake_clock: FakeClock,
    caplog: pytest.LogCaptureFixture,
    error: Exception,
    state: str,
    level: int,
    told: str,
) -> None:
    """batcher/B57: items back off, the ledger fills, producers are refused, the log says why and no
    item fails; then all are delivered.
    """
    sink: ScriptedSink[int] = ScriptedSink([fail(error)] * 10)
    async with Batcher(stack(sink, Retry()), limits=LIMITS) as batcher:
        await batcher.add_many(range(40))
        await fake_clock.advance(1.0)
        with pytest.raises(AddTimeout):
            await batcher.add(40, timeout=0.1)
        stats = batcher.stats()
        assert stats.tally.backing_off > 0
        assert (stats.tally.delivered, stats.tally.queued, stats.tally.refused) == (
            0,
            40 - stats.tally.backing_off,
            1,
        )
        assert stats.destination.state == state
        assert [(record.levelno, told in record.getMessage()) for record in caplog.records] == [
            (level, True)
        ]
        await fake_clock.advance(120.0)
        assert batcher.tally().delivered == 40
        assert {record.levelno for record in caplog.records} == {level}
        assert batcher.stats().retries >= 10


async def test_the_destination_asks_to_slow_down(fake_clock: FakeClock) -> None:
    """batcher/B57: the pause is visible."""
    sink: ScriptedSink[int] = ScriptedSink([fail(ThrottledError("slowly", retry_after=30.0))])
    async with Batcher(stack(sink, Retry()), limits=LIMITS) as batcher:
        await batcher.add_many(range(10))
        await fake_clock.advance(10.0)
        assert batcher.stats().throttled_seconds == pytest.approx(20.0)
        assert batcher.stats().tally.backing_off == 10


async def test_a_shutdown_that_left_something(
    fake_clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    """batcher/B57: the last line says INCOMPLETE, with the unsent and the unknown items."""
    batcher: Batcher[Any] = Batcher(ScriptedSink([hang()]), limits=LIMITS)
    async with batcher:
        await batcher.add_many(range(15))
        await fake_clock.advance(0.1)
        await batcher.shutdown(1.0)
    line = caplog.records[-1].getMessage()
    assert line.startswith("shutdown of batcher")
    assert "INCOMPLETE" in line
    assert "5 unsent" in line
    assert "10 unknown" in line


async def test_the_page_names_metrics_that_exist(fake_clock: FakeClock, tmp_path: Path) -> None:
    """batcher/B57: every metric on the page is exported with the label that the page shows."""
    registry = CollectorRegistry()
    observer = PrometheusObserver(registry, tenants=20)
    async with Batcher(
        ScriptedSink[int](), tenant=str, limits=LIMITS, observers=[observer]
    ) as batcher:
        await batcher.add(1)
        await fake_clock.advance(1.0)
        await batcher.add(2)
        spooled = Batcher(
            ScriptedSink[int](), name="spooled", observers=[observer], spool=Spool(tmp_path)
        )
        async with spooled:
            exposed = generate_latest(registry).decode()
    named = re.findall(r"`(batcher_\w+)(?:\{(\w+)\})?`", (DOCS / "how-to/operate.md").read_text())
    assert len(named) > 3
    for metric, label in named:
        assert re.search(rf'^{metric}(_bucket)?\{{.*{label}="', exposed, re.MULTILINE), metric
