"""A pipe with one hot key."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from piping import P0, Destination, key_of, records

from sluicegate import Batcher, Limits, flow
from sluicegate.consumer import MemoryLog, MemorySource

if TYPE_CHECKING:
    from sluicegate import Batch
    from sluicegate.testing import FakeClock

COUNT = 20_000
WRITE = 0.01
"""Duration of a write, in seconds."""


async def test_a_hot_key_settles_thousands_of_records_a_second_in_order(
    fake_clock: FakeClock,
) -> None:
    """G-T22: at least 5,000 per second, through consecutive writes that may contain many rows of a
    key. Processor time does not count.
    """
    log = MemoryLog(records(["hot"] * COUNT))
    sink = Destination(prefix_safe=True)

    async def before(batch: Batch[Any]) -> None:
        await fake_clock.sleep(WRITE)

    sink.before = before
    limits = Limits(max_items=500, max_delay=0.05, workers=4)
    batcher = Batcher(sink, key=key_of, limits=limits, clock=fake_clock)
    began = fake_clock.now()
    report = await flow.pipe(MemorySource(log, ends=True, clock=fake_clock), batcher).run()
    seconds = fake_clock.now() - began
    assert sink.offsets == list(range(COUNT))
    assert log.start(P0).offset == COUNT
    assert report.source.counts.acked == COUNT
    assert COUNT / seconds >= 5_000
