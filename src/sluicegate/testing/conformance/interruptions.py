"""Tests of cancelled, timed-out and concurrent writes."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeVar

from ..._core.batch import RowBatch
from ..._core.send import send
from ..._core.sink import capabilities_of
from .subject import SinkUnderTest

if TYPE_CHECKING:
    from ..._core.clock import LoopClock

T = TypeVar("T")

ROUNDS = (0, 1, 2, 3, 5, 8, 13, 21, 34, 55, 144, 377, 987)
"""Rounds of the loop before a write is cancelled; after the last ones most writes have ended."""


class InterruptionTests(SinkUnderTest[T]):
    """Tests of cancelled, timed-out and concurrent writes."""

    async def test_a_cancelled_write_ends_and_leaves_the_sink_usable(
        self, real_clock: LoopClock
    ) -> None:
        """Cancellation passes through at any moment, and items delivered by then are stored."""
        async with self.open_sink() as sink:
            for rounds in ROUNDS:
                batch = RowBatch(self.items(4))
                write = asyncio.get_running_loop().create_task(send(sink, batch))
                for _ in range(rounds):
                    await real_clock.sleep(0)
                write.cancel()
                ended, _ = await asyncio.wait([write], timeout=10.0)
                assert ended, "the write did not end within 10 s of its cancellation"
                delivered = [batch[index] for index in range(4) if batch.delivery.is_settled(index)]
                await self._nothing_lost(delivered)
                again = await send(sink, batch)
                await self._nothing_lost(
                    [item for index, item in enumerate(batch) if index not in again]
                )
                assert await send(sink, RowBatch(self.items(1))) == {}, (
                    f"after a cancellation ({rounds} turns) the sink no longer works"
                )

    async def test_a_try_that_is_timed_out_tells_the_truth(self, real_clock: LoopClock) -> None:
        """Every item reported as delivered is stored, with a far too short timeout and without one."""
        async with self.open_sink() as sink:
            for seconds in (1e-6, 1e-4, 1e-3):
                batch = RowBatch(self.items(4))
                try:
                    async with real_clock.timeout_at(real_clock.now() + seconds):
                        await send(sink, batch)
                except TimeoutError:
                    pass
                await self._nothing_lost(
                    [batch[index] for index in range(4) if batch.delivery.is_settled(index)]
                )
                again = await send(sink, batch)
                await self._nothing_lost(
                    [item for index, item in enumerate(batch) if index not in again]
                )

    async def test_writes_beside_each_other(self, real_clock: LoopClock) -> None:
        """The sink handles its maximum of concurrent writes (four without a limit)."""
        async with self.open_sink() as sink:
            most = capabilities_of(sink).max_concurrency or 4
            batches = [RowBatch(self.items(5)) for _ in range(min(most, 16))]
            answers = await asyncio.gather(*(send(sink, batch) for batch in batches))
        assert answers == [{}] * len(batches)
        await self._nothing_lost([item for batch in batches for item in batch])
