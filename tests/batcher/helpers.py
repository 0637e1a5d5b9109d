"""Small sinks that the batcher's tests write to."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from sluicegate import Batch, WriteResult

if TYPE_CHECKING:
    from collections.abc import Callable


class Recording:
    """Keeps every batch; optionally takes `seconds` per write and returns `answer`."""

    def __init__(
        self, seconds: float = 0.0, answer: Callable[[Batch[Any]], WriteResult | None] | None = None
    ) -> None:
        self.seconds = seconds
        self.answer = answer
        self.batches: list[tuple[Any, ...]] = []
        self.reasons: list[str] = []
        self.times: list[float] = []
        self.running = 0
        self.most_running = 0

    @property
    def items(self) -> list[Any]:
        return [item for batch in self.batches for item in batch]

    async def write(self, batch: Batch[Any]) -> WriteResult | None:
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        try:
            self.times.append(asyncio.get_running_loop().time())
            if self.seconds:
                await asyncio.sleep(self.seconds)
            result = None if self.answer is None else self.answer(batch)
            self.batches.append(tuple(batch))
            self.reasons.append(batch.reason.value)
            return result
        finally:
            self.running -= 1


class Gated:
    """Writes wait until the gate opens."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.items: list[Any] = []
        self.calls = 0

    async def write(self, batch: Batch[Any]) -> None:
        self.calls += 1
        await self.gate.wait()
        self.items.extend(batch)


class Deaf:
    """Swallows every cancellation for `seconds`, then applies the batch anyway."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.items: list[Any] = []
        self.calls = 0

    async def write(self, batch: Batch[Any]) -> None:
        self.calls += 1
        loop = asyncio.get_running_loop()
        until = loop.time() + self.seconds
        while loop.time() < until:
            try:
                await asyncio.sleep(until - loop.time())
            except asyncio.CancelledError:
                continue
        self.items.extend(batch)
