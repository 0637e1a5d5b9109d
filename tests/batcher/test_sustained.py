"""Sustained load: nothing grows."""

from __future__ import annotations

import asyncio
import gc
import itertools
import logging
import math
from typing import TYPE_CHECKING, Any

import pytest

from sluicegate import (
    Batch,
    Batcher,
    Limits,
    PermanentError,
    Retry,
    Timeout,
    TransientError,
    WriteResult,
    stack,
)
from sluicegate.testing import FakeClock

if TYPE_CHECKING:
    from collections.abc import Iterator

RATE = 1000


class Hiccups:
    """A slow sink that sometimes fails or refuses an item."""

    def __init__(self, clock: FakeClock) -> None:
        self.clock = clock
        self.written = 0
        self.reasons: set[str] = set()
        self._calls = itertools.count(1)

    async def write(self, batch: Batch[bytes]) -> WriteResult | None:
        call = next(self._calls)
        self.reasons.add(batch.reason.value)
        await self.clock.sleep(0.02)
        if call % 50 == 0:
            raise TransientError("now and then")
        bad = {0: PermanentError("this one")} if call % 70 == 0 else {}
        self.written += len(batch) - len(bad)
        return WriteResult.failed(batch, bad)


def items() -> Iterator[bytes]:
    """Small items, with occasional bursts of large ones."""
    for number in itertools.count():
        yield bytes(4000 if number % 5000 < 200 else 20)


async def load(clock: FakeClock, seconds: int) -> tuple[list[int], list[int], Hiccups, Any]:
    """The numbers of tasks and objects after each tenth of the time."""
    sink = Hiccups(clock)
    limits = Limits(
        max_items=200, max_delay=0.1, max_bytes=64_000, workers=2, max_pending_items=1000
    )
    tasks, objects = [], []
    source = items()
    async with Batcher(stack(sink, Timeout(5.0), Retry()), limits=limits) as batcher:
        for second in range(seconds):
            for burst in range(20):
                await batcher.add_many(list(itertools.islice(source, RATE // 40)))
                for item in itertools.islice(source, RATE // 40):
                    await batcher.add(item)
                await clock.sleep(0.05 if burst % 2 else 0.0)
            await clock.sleep(0.5)
            if second % 7 == 0:
                await batcher.add(next(source))
                await batcher.flush()
            if second % max(1, seconds // 10) == 0 and second:
                await batcher.flush()
                gc.collect()
                tasks.append(len(asyncio.all_tasks()))
                objects.append(len(gc.get_objects()))
        report = await batcher.shutdown()
    report.verify()
    assert report.tally.accepted == seconds * RATE + math.ceil(seconds / 7)
    return tasks, objects, sink, report


@pytest.mark.parametrize("seconds", [25, pytest.param(3600, marks=pytest.mark.soak)])
def test_tasks_and_memory_stay_flat(seconds: int, caplog: pytest.LogCaptureFixture) -> None:
    """B-T54, B-T36: the short run has asyncio's debug mode on, so that its complaints are
    errors.
    """
    caplog.set_level(logging.CRITICAL, "sluicegate")  # pytest would keep every record
    with FakeClock() as clock:
        clock.loop.set_debug(seconds == 25)
        clock.loop.slow_callback_duration = 60.0
        tasks, objects, sink, report = clock.run(load(clock, seconds))
        assert clock.leftovers() == []
    assert {"size", "time", "bytes", "manual"} <= sink.reasons
    assert len(set(tasks)) == 1, tasks
    assert max(objects[1:]) - min(objects[1:]) < 500, objects
    assert sink.written == report.tally.delivered
