"""A day without a destination, on virtual time: memory stays flat, the disk is bounded, and the
backlog is sent faster than new items come in.

White box: the size of the files.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from sluicegate import Batcher, Limits, Retry, UnavailableError, stack
from sluicegate.flow import Spool

if TYPE_CHECKING:
    from sluicegate import Batch
    from sluicegate.testing import FakeClock

DAY, SHORT = 86_400.0, 900.0
PARTS = 100
MOST_GROWTH = 24 << 20
"""Bytes by which the process may grow after the first tenth of the time."""


def resident() -> int:
    """Return the bytes of this process in memory."""
    with Path("/proc/self/statm").open(encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


class Counting:
    """A destination that checks that numbers come once and in order; a write takes 10 ms."""

    def __init__(self) -> None:
        self.is_down = True
        self.next = 0

    async def write(self, batch: Batch[int]) -> None:
        """Apply a batch."""
        if self.is_down:
            raise UnavailableError("offline")
        await asyncio.sleep(0.01)
        assert [*batch] == [*range(self.next, self.next + len(batch))]
        self.next += len(batch)


@pytest.mark.parametrize(
    ("count", "seconds"),
    [
        (100_000, SHORT),
        pytest.param(10_000_000, DAY, marks=[pytest.mark.long, pytest.mark.timeout(3600)]),
    ],
)
async def test_a_day_offline_is_caught_up(
    fake_clock: FakeClock, tmp_path: Path, count: int, seconds: float
) -> None:
    sink, part = Counting(), count // PARTS
    most_bytes = max(10 << 20, 60 * count)
    spool = Spool(
        tmp_path / "spool",
        max_bytes=most_bytes,
        durability="os",
        encode=lambda item: b"%d" % item,
        decode=int,
    )
    batcher: Batcher[int] = Batcher(
        stack(sink, Retry()),
        limits=Limits(max_items=500, max_pending_items=1000),
        spool=spool,
        clock=fake_clock,
    )
    sizes: list[int] = []
    levels: list[int] = []

    async def produce(first: int) -> None:
        for at in range(first, first + part, 2000):
            await batcher.add_many(range(at, min(at + 2000, first + part)))
        await fake_clock.sleep(seconds / PARTS)
        assert spool._folder.running is not None
        sizes.append(spool._folder.running.store.bytes)
        levels.append(resident())

    async with batcher:
        for number in range(PARTS):
            await produce(number * part)
        assert sink.next == 0
        sink.is_down = False
        began, caught_up = fake_clock.now(), 0.0
        for number in range(PARTS, PARTS + 5):
            await produce(number * part)
            if sink.next == (number + 1) * part:
                caught_up = caught_up or fake_clock.now() - began
        assert 0.0 < caught_up <= 5 * seconds / PARTS
    assert sink.next == count + 5 * part
    assert max(sizes) <= most_bytes
    assert sizes[-1] < max(sizes) / 2  # files without unsettled items are deleted
    assert max(levels) - levels[PARTS // 10] < MOST_GROWTH
