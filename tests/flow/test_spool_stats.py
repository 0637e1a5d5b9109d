"""What a batcher tells about its spool. White box: the limit of pages of the open file, by which SQLite
finds a disk full.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("prometheus_client")
from prometheus_client import CollectorRegistry

from sluicegate import Batcher, Limits, PermanentError
from sluicegate.errors import DeliverTimeout
from sluicegate.flow import Spool
from sluicegate.telemetry import PrometheusObserver
from sluicegate.testing import ScriptedSink, fail, hang, slow

if TYPE_CHECKING:
    from pathlib import Path

    from sluicegate import Batch
    from sluicegate._core.spooling import SpoolStats
    from sluicegate.testing import FakeClock

ONE = Limits(max_items=1, workers=1, flush_timeout=3600.0)


def told(batcher: Batcher[Any]) -> SpoolStats:
    stats = batcher.stats().spool
    assert stats is not None
    return stats


async def test_fill_and_age_follow_the_items_also_over_a_restart(
    tmp_path: Path, fake_clock: FakeClock
) -> None:
    """The first item fails, the second one takes 50 s, the third one stays in the spool."""
    registry = CollectorRegistry()
    script: list[Any] = [fail(PermanentError("no")), slow(50.0), hang()]

    def batcher(sink: Any) -> Batcher[Any]:
        spool, observers = Spool(tmp_path, max_items=4), [PrometheusObserver(registry)]
        return Batcher(
            sink, name="audit", limits=ONE, spool=spool, clock=fake_clock, observers=observers
        )

    def value(metric: str, name: str = "audit") -> float | None:
        return registry.get_sample_value(f"batcher_{metric}", {"name": name})

    first = batcher(ScriptedSink(script))
    assert first.stats().spool is None
    async with first:
        assert (told(first).items, told(first).oldest_age, told(first).fill) == (0, None, 0.0)
        assert value("spool_oldest_age_seconds") == 0.0
        await first.add_many(range(2))
        await fake_clock.sleep(20.0)
        await first.add(2)
        await fake_clock.sleep(20.0)
        assert (told(first).items, told(first).parked, told(first).fill) == (2, 1, 0.5)
        assert told(first).oldest_age == pytest.approx(40.0, abs=0.1)
        assert value("spool_items") == 2.0
        assert value("spool_bytes") == told(first).bytes > 0
        assert value("spool_fill_ratio") == 0.5
        assert value("spool_parked_items") == 1.0
        assert value("spool_items", "audit-sending") is None
        assert value("flush_in_flight", "audit-sending") == 1.0
        await fake_clock.sleep(20.0)
        assert told(first).items == 1
        assert told(first).oldest_age == pytest.approx(40.0, abs=0.1), "the second one is settled"
        await first.shutdown(deadline=1.0)
    assert told(first).items == 1, "a closed batcher tells what is left"
    assert value("spool_items") is None
    async with batcher(ScriptedSink[Any]([slow(20.0)])) as second:
        await fake_clock.sleep(10.0)
        assert (told(second).items, told(second).parked) == (1, 1)
        assert told(second).oldest_age == pytest.approx(51.0, abs=0.3)
    assert (told(second).items, told(second).oldest_age) == (0, None)


async def test_a_file_that_one_item_keeps_is_told(tmp_path: Path, fake_clock: FakeClock) -> None:
    done = asyncio.Event()

    async def sink(batch: Batch[bytes]) -> None:
        if batch[0][:1] == b"0":
            await done.wait()

    spool = Spool(tmp_path, segment_bytes=1 << 16)
    async with Batcher(sink, spool=spool, limits=Limits(max_items=1, workers=2)) as batcher:
        await batcher.add_many(b"%d" % number * 4000 for number in range(20))
        await batcher.add(b"20")
        await fake_clock.sleep(1.0)
        assert (told(batcher).items, told(batcher).sparse_files) == (1, 1)
        done.set()
        await fake_clock.sleep(1.0)
        assert (told(batcher).items, told(batcher).sparse_files) == (0, 0)


async def test_a_disk_that_refuses_is_told_until_it_accepts(
    tmp_path: Path, fake_clock: FakeClock
) -> None:
    spool = Spool(tmp_path)
    async with Batcher(ScriptedSink[Any]([]), spool=spool) as batcher:
        assert told(batcher).refusal == ""
        async with spool._folder.opened() as running:
            file = running.store.segments[-1]._db
        (most,) = file.execute("PRAGMA max_page_count").fetchone()
        file.execute("PRAGMA max_page_count = 1")
        with pytest.raises(DeliverTimeout):
            await batcher.add(b"0" * 100_000, timeout=1.0)
        assert "the disk is full" in told(batcher).refusal
        assert batcher.stats().destination.state == "refused"
        file.execute(f"PRAGMA max_page_count = {most}")
        await batcher.flush()
        assert told(batcher).refusal == ""
        assert batcher.stats().destination.state == "available"
