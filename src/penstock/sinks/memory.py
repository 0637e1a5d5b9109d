"""A destination in memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from .._core.batch import Batch

T = TypeVar("T")


class MemorySink(Generic[T]):
    """Keeps everything that is written to it, for tests and examples. Never fails, never suspends."""

    def __init__(self) -> None:
        self.batches: list[Batch[T]] = []
        """The batches, in the order in which they were written."""

    @property
    def items(self) -> list[T]:
        """All items, in the order in which they were written."""
        return [item for batch in self.batches for item in batch]

    async def write(self, batch: Batch[T]) -> None:
        """Keep the batch."""
        self.batches.append(batch)

    def clear(self) -> None:
        """Forget everything."""
        self.batches.clear()

    def __repr__(self) -> str:
        return f"MemorySink({sum(map(len, self.batches))} items in {len(self.batches)} batches)"
