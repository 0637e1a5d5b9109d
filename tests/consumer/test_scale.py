"""The memory of a consumer does not grow with the number of past keys and records.

White box: claims and maps of many records.
"""

from __future__ import annotations

import asyncio
import base64
import gc
import tracemalloc
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

import pytest
from consumer_help import P0

from sluicegate import Consumer
from sluicegate._core.order.lanes import Lanes
from sluicegate.consumer import MemoryLog, MemorySource, Position, Record
from sluicegate.consumer.progress import offset_map
from sluicegate.consumer.progress.claim import Claim

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sluicegate import Message
    from sluicegate.testing import FakeClock

BESIDES = 200_000
"""Bytes that do not depend on the number of records: workers, full queues."""


class Growth:
    """The growth in bytes from the beginning to the end of the block."""

    bytes = 0


@contextmanager
def growth() -> Iterator[Growth]:
    base64.b85encode(b"")  # used by maps; the module builds its table on the first call
    gc.collect()
    tracemalloc.start()
    try:
        grown = Growth()
        before = tracemalloc.get_traced_memory()[0]
        yield grown
        gc.collect()
        grown.bytes = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("count", [2_000, pytest.param(1_000_000, marks=pytest.mark.soak)])
async def test_keys_that_were_handled_leave_no_lane_no_task_and_no_memory(
    fake_clock: FakeClock, count: int
) -> None:
    """An idle key needs no memory."""
    log = MemoryLog(Record("orders", 0, offset, b"%d" % offset) for offset in range(count))

    async def handle(message: Message) -> None:
        if message.offset % 10 == 0:
            await asyncio.sleep(0)

    async with Consumer(
        MemorySource(log, ends=True, clock=fake_clock), clock=fake_clock
    ) as consumer:
        tasks = asyncio.all_tasks()
        with growth() as grown:
            report = await consumer.run(handle)
        schedule = consumer._open().schedule
        assert report.counts.acked == count
        assert schedule.active == schedule.waiting == schedule.window.messages == 0
        assert asyncio.all_tasks() == tasks
        assert grown.bytes < BESIDES + count / 10


@pytest.mark.parametrize("count", [20_000, pytest.param(10_000_000, marks=pytest.mark.soak)])
def test_a_record_settled_behind_a_stuck_one_costs_its_claim_a_byte(count: int) -> None:
    """Nothing remains once the stuck record is settled."""
    claim = Claim(P0, 1, Position(0), Lanes(), cast("Any", None))
    with growth() as grown:
        claim.tracker.admit(0, count - 1, count)
    assert all(map(claim.settle, range(1, count)))
    position, text = claim.snapshot()
    assert grown.bytes < 10_000 + count
    assert claim.tracker.span == count
    assert position == 0
    assert offset_map.decode(0, text) == [(1, count)]
    assert claim.settle(0)
    assert claim.snapshot() == Position(count)
    assert claim.tracker.span == 0
