"""A batch that returns from a backoff gets a free slot before fresh batches.

White box: a signal of the clock ends a backoff.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sluicegate import Batch, Batcher, Limits
from sluicegate._core.clock import Signal

if TYPE_CHECKING:
    from sluicegate.testing import FakeClock


class Waking:
    """The first batch waits for the end of the second's write, which takes a second like all
    writes.
    """

    def __init__(self, clock: FakeClock) -> None:
        self.clock = clock
        self.woken = Signal()
        self.began: list[int] = []

    async def write(self, batch: Batch[int]) -> None:
        if batch[0] == 0:
            await batch.back_off(60.0, self.woken)
        self.began.append(batch[0])
        await self.clock.sleep(1.0)
        if batch[0] == 1:
            self.woken.fire()


async def test_a_batch_woken_by_a_write_gets_its_slot_before_a_fresh_one(
    fake_clock: FakeClock,
) -> None:
    sink = Waking(fake_clock)
    limits = Limits(max_items=1, workers=2, max_delay=0.05)
    async with Batcher(sink, limits=limits) as batcher:
        await batcher.add_many(range(6))
        await batcher.flush()
    assert sink.began == [1, 2, 0, 3, 4, 5]
