"""Receipts: an item's outcome, awaitable without a future or task per item."""

from __future__ import annotations

import asyncio
import os
import threading
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from .._core import checks
from .._core.errors import DeliverTimeout, ForkedError, ItemFailed
from .._core.runtime.loops import refuse_in_a_loop
from .._core.runtime.process_fork import ProcessLock

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Sequence
    from datetime import timedelta

    from .._core.outcome import Outcome

_JOINING = ProcessLock()


class Resolvable(Protocol):
    """The receipt of one or more items: any object with this method."""

    def resolve(self, outcome: Outcome, cause: BaseException | None, detail: object) -> None:
        """Receive an item's outcome, once per accepted item; called by the batcher.

        It runs in the middle of a step of the batcher: it must not raise, and must not use the
        batcher.
        """


ResolvesAll: TypeAlias = "Callable[[Sequence[Resolvable], Outcome], bool]"
"""Receives the receipts of a batch whose items all have the same success. Returns whether it has
handled all of them; otherwise it has handled none, and each is resolved. The rules of `resolve`
apply.
"""


class ReceiptBase:
    """The outcome of one item, once it has one."""

    __slots__ = ("_cause", "_waiters", "detail", "outcome")

    def __init__(self) -> None:
        self.outcome: Outcome | None = None
        """The item's outcome; `None` while it is pending."""
        self.detail: object = None
        """The sink's result for this item: a returned row, an offset, an id; `None` without one."""
        self._cause: BaseException | None = None
        self._waiters: Any = ()  # one `__init__` for both classes, since it runs for each `submit`

    @property
    def done(self) -> bool:
        """Whether the item has its outcome."""
        return self.outcome is not None

    def resolve(self, outcome: Outcome, cause: BaseException | None, detail: object) -> None:
        """Set the outcome once; called by the batcher."""
        self.detail = detail
        self._cause = cause
        self.outcome = outcome  # before the waiters are read: another thread may join meanwhile
        if self._waiters:
            self._wake()

    def _wake(self) -> None:
        """Wake the waiters."""

    def _success(self, outcome: Outcome) -> Outcome:
        if not outcome.is_success:
            raise ItemFailed(outcome, self._cause)
        return outcome

    def __repr__(self) -> str:
        return f"{type(self).__name__}({'inside' if self.outcome is None else self.outcome.value})"


class Receipt(ReceiptBase):
    """The receipt of `submit`: `await` it for the item's outcome.

    Awaiting returns a success (delivered, duplicate, spooled) or raises a new
    `ItemFailed(outcome, cause)` each time, including for a dead-lettered item; `settled` and
    `outcome` give every outcome. Any number of tasks may wait; cancelling one affects neither the
    others nor the item. A receipt that is never awaited is silent.
    """

    __slots__ = ()
    _waiters: list[asyncio.Future[None]]

    def __await__(self) -> Generator[None, None, Outcome]:
        if self.outcome is None:
            yield from self.settled().__await__()
        return self.result()

    async def settled(self) -> Outcome:
        """Wait for the outcome and return it, failures included. Cancellation does not affect the
        item.
        """
        while self.outcome is None:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            waiters = self._waiters or []
            waiters.append(waiter)
            self._waiters = waiters
            await waiter
        return self.outcome

    def result(self) -> Outcome:
        """Return a success or raise `ItemFailed`, like awaiting; `InvalidStateError` while the item
        is inside.
        """
        if self.outcome is None:
            message = "the item has no outcome yet; await the receipt"
            raise asyncio.InvalidStateError(message)
        return self._success(self.outcome)

    def _wake(self) -> None:
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)
        self._waiters = []


class BlockingReceipt(ReceiptBase):
    """The receipt of `BlockingBatcher.submit`; any number of threads may wait for it.

    Threads and loop share raw locks only: an interrupted thread must not keep a lock that the loop
    needs.
    """

    __slots__ = ("_process",)
    _waiters: tuple[threading.Lock, ...]

    def __init__(self) -> None:
        super().__init__()
        self._process = os.getpid()

    def result(self, timeout: float | timedelta | None = None) -> Outcome:
        """Block until the item has its outcome; return a success (delivered, duplicate, spooled),
        or raise a new `ItemFailed`, including for a dead-lettered item.

        Waits and raises like `settled`.
        """
        return self._success(self.settled(timeout))

    def settled(self, timeout: float | timedelta | None = None) -> Outcome:
        """Block until the item has its outcome; return it, failures included.

        `timeout` in seconds (default: none) bounds the wait. Raises `DeliverTimeout` when it
        expires, which does not affect the item; `ConfigError` for a bad timeout, and in a thread
        with a running loop if it would have to wait; `ForkedError` in a forked child, since the
        item is its parent's.
        """
        seconds = checks.optional_seconds("timeout", timeout, zero=True, usual=checks.LONG_TIMEOUT)
        if self.outcome is None:
            refuse_in_a_loop("waiting for the receipt", "await a Batcher's receipt")
            if self._process != os.getpid():
                raise ForkedError(
                    "the item was added by the parent of this forked process, which writes it; its "
                    "outcome is known only there"
                )
            self._wait(seconds)
        if self.outcome is None:
            raise DeliverTimeout(self, seconds or 0.0)
        return self.outcome

    def _wait(self, timeout: float | None) -> None:
        arrived = threading.Lock()
        arrived.acquire()
        with _JOINING:  # joins first and reads the outcome afterwards; `resolve` does the opposite
            self._waiters = (*self._waiters, arrived)
        if self.outcome is None:
            most = threading.TIMEOUT_MAX
            arrived.acquire(timeout=-1 if timeout is None else min(timeout, most))

    def _wake(self) -> None:
        waiters, self._waiters = self._waiters, ()
        for arrived in waiters:
            arrived.release()


def is_missed(receipt: ReceiptBase) -> bool:
    """Return whether a receipt is not resolved, or was not completely."""
    return receipt.outcome is None or bool(receipt._waiters)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]


async def gather(receipts: Iterable[Receipt]) -> list[Outcome]:
    """Wait for many receipts without a task for each; return their successes in order.

    Suspends until the last item has its outcome. Then raises the `ItemFailed` of the first item
    without a success, if there is one; the outcome of every item is in its receipt. Cancellation
    does not affect the items.
    """
    each = tuple(receipts)
    for receipt in each:
        if receipt.outcome is None:
            await receipt.settled()
    return [receipt.result() for receipt in each]


class Doubtful:
    """The receipt of a queued item that an earlier turn may have applied."""

    __slots__ = ("_doubts", "receipt")

    def __init__(self, receipt: Resolvable, doubts: Doubts) -> None:
        self.receipt = receipt
        self._doubts = doubts

    def resolve(self, outcome: Outcome, cause: BaseException | None, detail: object) -> None:
        """Pass on the outcome of an item that was not sent again."""
        self._doubts.left()
        self.receipt.resolve(outcome, cause, detail)


class Doubts:
    """Counts the queued items that an earlier turn may have applied: usually none."""

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0

    def wrap(self, receipt: Resolvable) -> Doubtful:
        """Mark a receipt until its item is launched."""
        self.count += 1
        return Doubtful(receipt, self)

    def left(self) -> None:
        """Count an item that has ended in the queue."""
        self.count -= 1

    def launched(self, receipts: dict[int, Resolvable]) -> list[int]:
        """Unwrap the marked receipts of a launched batch; return their indices."""
        marked = {i: each for i, each in receipts.items() if isinstance(each, Doubtful)}
        receipts.update({i: each.receipt for i, each in marked.items()})
        self.count -= len(marked)
        return [*marked]


def original(receipt: Resolvable) -> Resolvable:
    """Return the receipt as given."""
    return receipt.receipt if isinstance(receipt, Doubtful) else receipt
