"""Fences: a flush waits for exactly the items that were accepted before it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from .._core.outcome import Outcome


class Fence:
    """Waits for every batch up to a number, and counts their outcomes."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.outcomes: dict[Outcome, int] = {}
        self.passed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._not_before = 0
        """The number of settled items before which it cannot open; saves counting the earlier
        items.
        """

    def add(self, outcomes: Mapping[Outcome, int]) -> None:
        """Count the outcomes of a batch."""
        for outcome, count in outcomes.items():
            self.outcomes[outcome] = self.outcomes.get(outcome, 0) + count

    def opens(self, settled: int, before: Callable[[int], int], *, holding: bool) -> bool:
        """Return whether no earlier items are left."""
        if settled < self._not_before and not holding:
            return False
        left = before(self.number)
        self._not_before = settled + left
        return not left

    def open(self) -> None:
        """End the wait."""
        if not self.passed.done():
            self.passed.set_result(None)


class Fences:
    """The closed fences. `before` counts the items inside up to a batch number."""

    def __init__(self, before: Callable[[int], int]) -> None:
        self._before = before
        self.pending: list[Fence] = []

    def add(self, number: int) -> Fence:
        """Add a fence after the batches up to this number."""
        fence = Fence(number)
        self.pending.append(fence)
        return fence

    def remove(self, fence: Fence) -> None:
        """Remove a fence."""
        if fence in self.pending:
            self.pending.remove(fence)

    def count(self, number: int, outcomes: Mapping[Outcome, int]) -> None:
        """Count the outcomes of a batch for the fences after it."""
        for fence in self.pending:
            if number <= fence.number:
                fence.add(outcomes)

    def count_items(self, numbers: Sequence[int], outcome: Outcome) -> None:
        """Count the outcome of items by the numbers of their batches."""
        for fence in self.pending:
            behind = sum(1 for number in numbers if number <= fence.number)
            if behind:
                fence.add({outcome: behind})

    def check(self, settled: int, *, holding: bool) -> None:
        """Open the fences without earlier items; `settled` is the number of items with an outcome."""
        for fence in tuple(self.pending):
            if fence.opens(settled, self._before, holding=holding):
                fence.open()
                self.remove(fence)

    def open_all(self) -> None:
        """End all waits: the batcher is broken."""
        for fence in self.pending:
            fence.open()
