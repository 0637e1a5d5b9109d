"""A receipt for one item: an awaitable of its own, not a future."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from .._core.errors import ItemFailed

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable

    from .._core.outcome import Outcome


class Receipt:
    """What `submit` gives for an item: `await` it for the item's outcome.

    Awaiting returns a success outcome or raises a new `ItemFailed(outcome, cause)` each time. Any number may wait; cancelling one
    touches nobody else. A receipt that nobody awaits is silent.
    """

    __slots__ = ("_cause", "_waiters", "detail", "outcome")

    def __init__(self) -> None:
        self.outcome: Outcome | None = None
        """How the item ended; `None` while it is inside."""
        self.detail: object = None
        """What the sink said of this item: a returned row, an offset, an id; `None` where it said nothing."""
        self._cause: BaseException | None = None
        self._waiters: list[asyncio.Future[None]] | None = None

    @property
    def done(self) -> bool:
        """Whether the item has its outcome."""
        return self.outcome is not None

    def __await__(self) -> Generator[None, None, Outcome]:
        if self.outcome is None:
            yield from self.settled().__await__()
        return self.result()

    async def settled(self) -> Outcome:
        """Wait for the outcome and return it, good or bad. Cancellation leaves the item where it is."""
        while self.outcome is None:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            if self._waiters is None:
                self._waiters = [waiter]
            else:
                self._waiters.append(waiter)
            await waiter
        return self.outcome

    def result(self) -> Outcome:
        """The success outcome, or raise `ItemFailed`. Raises `InvalidStateError` while the item is inside."""
        if self.outcome is None:
            message = "the item has no outcome yet; await the receipt"
            raise asyncio.InvalidStateError(message)
        if not self.outcome.is_success:
            raise ItemFailed(self.outcome, self._cause)
        return self.outcome

    def resolve(self, outcome: Outcome, cause: BaseException | None, detail: object) -> None:
        """Set the outcome, once; the batcher's to call."""
        self.outcome = outcome
        self.detail = detail
        self._cause = cause
        if self._waiters is not None:
            for waiter in self._waiters:
                if not waiter.done():
                    waiter.set_result(None)
            self._waiters = None

    def __repr__(self) -> str:
        return f"Receipt({'inside' if self.outcome is None else self.outcome.value})"


async def gather(receipts: Iterable[Receipt]) -> list[Outcome]:
    """Wait for many receipts, without a task for any; return each item's outcome, failures included, in order.

    Suspends until the last has its outcome. Raises nothing of its own; cancellation leaves the items where they are.
    """
    outcomes: list[Outcome] = []
    for receipt in receipts:
        outcome = receipt.outcome
        outcomes.append(await receipt.settled() if outcome is None else outcome)
    return outcomes
