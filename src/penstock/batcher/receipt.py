"""A receipt for one item: it waits by itself, without a future or task behind it."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING

from .._core.errors import ItemFailed
from .._core.runtime.loops import refuse_in_a_loop

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable

    from .._core.outcome import Outcome


class ReceiptBase:
    """One item's outcome, once it has one: what all receipts have in common."""

    __slots__ = ("_cause", "detail", "outcome")

    def __init__(self) -> None:
        self.outcome: Outcome | None = None
        """How the item ended; `None` while it is inside."""
        self.detail: object = None
        """What the sink said of this item: a returned row, an offset, an id; `None` where it said
        nothing.
        """
        self._cause: BaseException | None = None

    @property
    def done(self) -> bool:
        """Whether the item has its outcome."""
        return self.outcome is not None

    def resolve(self, outcome: Outcome, cause: BaseException | None, detail: object) -> None:
        """Set the outcome, once; the batcher's to call."""
        self.detail = detail
        self._cause = cause
        self.outcome = outcome  # last: another thread may be looking
        self._wake()

    def _wake(self) -> None:
        """Somebody may be waiting."""

    def _success(self, outcome: Outcome) -> Outcome:
        if not outcome.is_success:
            raise ItemFailed(outcome, self._cause)
        return outcome

    def __repr__(self) -> str:
        return f"{type(self).__name__}({'inside' if self.outcome is None else self.outcome.value})"


class Receipt(ReceiptBase):
    """What `submit` gives for an item: `await` it for the item's outcome.

    Awaiting returns a success outcome or raises a new `ItemFailed(outcome, cause)` each time. Any
    number may wait; cancelling one touches nobody else. A receipt that nobody awaits is silent.
    """

    __slots__ = ("_waiters",)

    def __init__(self) -> None:
        super().__init__()
        self._waiters: list[asyncio.Future[None]] | None = None

    def __await__(self) -> Generator[None, None, Outcome]:
        if self.outcome is None:
            yield from self.settled().__await__()
        return self.result()

    async def settled(self) -> Outcome:
        """Wait for the outcome and return it, good or bad. Cancellation leaves the item where it
        is.
        """
        while self.outcome is None:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            if self._waiters is None:
                self._waiters = [waiter]
            else:
                self._waiters.append(waiter)
            await waiter
        return self.outcome

    def result(self) -> Outcome:
        """The success outcome, or raise `ItemFailed`. Raises `InvalidStateError` while the item is
        inside.
        """
        if self.outcome is None:
            message = "the item has no outcome yet; await the receipt"
            raise asyncio.InvalidStateError(message)
        return self._success(self.outcome)

    def _wake(self) -> None:
        if self._waiters is not None:
            for waiter in self._waiters:
                if not waiter.done():
                    waiter.set_result(None)
            self._waiters = None


_JOINING = threading.RLock()


class BlockingReceipt(ReceiptBase):
    """What `BlockingBatcher.submit` gives for an item: `result()` waits for the item's outcome. Any
    number of threads may wait.

    They share nothing but raw locks with the loop: one that is interrupted as it waits must not
    leave anything held that the loop wants.
    """

    __slots__ = ("_waiters",)

    def __init__(self) -> None:
        super().__init__()
        self._waiters: tuple[threading.Lock, ...] | None = ()

    def result(self, timeout: float | None = None) -> Outcome:
        """Block until the item has its outcome; return a success, raise a new `ItemFailed` for
        anything else.

        `timeout` in seconds (default: none) bounds the wait: `TimeoutError` leaves the item where
        it is. Raises `ConfigError` instead of waiting where an event loop runs in this thread.
        """
        if self.outcome is None:
            refuse_in_a_loop("result()", "await a Batcher's receipt")
            self._wait(timeout)
        if self.outcome is None:
            message = f"the item has no outcome after {timeout} s; it is still inside"
            raise TimeoutError(message)
        return self._success(self.outcome)

    def _wait(self, timeout: float | None) -> None:
        """The lock is there before the outcome is looked at, and the outcome is set before the
        locks are looked for: none is missed.
        """
        arrived = threading.Lock()
        arrived.acquire()
        with _JOINING:
            if self._waiters is not None:
                self._waiters = (*self._waiters, arrived)
        if self.outcome is None:
            arrived.acquire(
                timeout=-1 if timeout is None else min(max(timeout, 0.0), threading.TIMEOUT_MAX)
            )

    def _wake(self) -> None:
        waiters, self._waiters = self._waiters, None
        for arrived in waiters or ():
            arrived.release()


async def gather(receipts: Iterable[Receipt]) -> list[Outcome]:
    """Wait for many receipts, without a task for any; return each item's outcome, failures
    included, in order.

    Suspends until the last has its outcome. Raises nothing of its own; cancellation leaves the
    items where they are.
    """
    outcomes: list[Outcome] = []
    for receipt in receipts:
        outcome = receipt.outcome
        outcomes.append(await receipt.settled() if outcome is None else outcome)
    return outcomes
