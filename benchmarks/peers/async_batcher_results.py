"""async-batcher, with a sink that only counts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from async_batcher.batcher import AsyncBatcher

if TYPE_CHECKING:
    from collections.abc import Sequence


class CountingBatcher(AsyncBatcher[int, None]):  # type: ignore[misc]  # published without types
    """Its queue is not bounded, since a full queue refuses items instead of making producers wait."""

    def __init__(self, *, size: int, linger: float) -> None:
        super().__init__(max_batch_size=size, max_queue_time=linger)
        self.count = 0

    async def process_batch(self, batch: Sequence[int]) -> None:
        self.count += len(batch)
