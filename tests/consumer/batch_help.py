"""Batch handlers for tests of the consumer."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from sluicegate import Message

    Answer = Callable[[list[Message]], object]


def everything(_batch: list[Message]) -> object:
    """Acknowledge all messages."""
    return None


class Batches:
    """A batch handler that records its batches and returns the configured results."""

    def __init__(self, answer: Answer = everything) -> None:
        self.batches: list[list[Message]] = []
        self.attempts: list[list[int]] = []
        self._answer = answer

    async def __call__(self, batch: list[Message]) -> object:
        """Handle a batch immediately."""
        self.batches.append(list(batch))
        self.attempts.append([message.attempt for message in batch])
        return self._answer(batch)

    @property
    def offsets(self) -> list[list[int]]:
        """The offsets of each batch, in order."""
        return [[message.offset for message in batch] for batch in self.batches]

    def calls_with(self, offset: int) -> int:
        """The number of calls that contained a message."""
        return sum(offset in offsets for offsets in self.offsets)
