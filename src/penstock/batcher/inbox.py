"""What threads have handed in and the loop has not yet taken over: the part of the ledger that lies outside the loop.

1. The loop lends room; threads fill it. An item is in when it was appended, and the room that was lent is never exceeded, so the ledger's
   bound holds with both sides at work.
2. The loop is woken at most once between two takings.
3. The lock is held for a few steps of our own, never while anything else is called that could wait for a thread that wants it.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .receipt import Slip

T = TypeVar("T")


class Taken(NamedTuple, Generic[T]):
    """What came in since the last taking."""

    items: list[T]
    sizes: list[int]
    receipts: dict[int, Slip]
    """By index."""
    refused: int


class Inbox(Generic[T]):
    """Items on their way to the loop. `wake` asks the loop to take them, and must not block."""

    __slots__ = ("_awake", "_bytes", "_items", "_limit", "_limit_bytes", "_lock", "_receipts", "_refused", "_sized", "_sizes", "_wake")

    def __init__(self, wake: Callable[[], object], *, sized: bool) -> None:
        self._wake = wake
        self._sized = sized
        self._lock = threading.Lock()
        self._limit = 0
        self._limit_bytes: float = 0
        self._refused = 0
        self._fresh()

    def _fresh(self) -> None:
        self._items: list[T] = []
        self._sizes: list[int] = []
        self._receipts: dict[int, Slip] = {}
        self._bytes = 0
        self._awake = False

    def put(self, item: T) -> bool:
        """Append an item that nobody measures; False if there is no room for it now."""
        with self._lock:
            items = self._items
            if len(items) >= self._limit:
                return False
            items.append(item)
            if self._awake:
                return True
            self._awake = True
        self._wake()
        return True

    def put_all(self, items: Sequence[T], sizes: Sequence[int], receipts: Sequence[Slip | None]) -> bool:
        """Append all or nothing."""
        size = sum(sizes)
        with self._lock:
            first = len(self._items)
            if first + len(items) > self._limit or self._bytes + size > self._limit_bytes:
                return False
            self._items.extend(items)
            if self._sized:
                self._sizes.extend(sizes)
                self._bytes += size
            for place, receipt in enumerate(receipts, first):
                if receipt is not None:
                    self._receipts[place] = receipt
            if self._awake:
                return True
            self._awake = True
        self._wake()
        return True

    def refuse(self, count: int) -> None:
        """Count items that were turned away on this side."""
        with self._lock:
            self._refused += count

    # -- the loop's side ----------------------------------------------------------------------------------------------

    def take(self) -> Taken[T]:
        """Take everything over. What is taken uses up room that was lent."""
        with self._lock:
            items = self._items
            taken = Taken(items, self._sizes if self._sized else [0] * len(items), self._receipts, self._refused)
            self._limit -= len(items)
            self._limit_bytes -= self._bytes
            self._refused = 0
            self._fresh()
        return taken

    def lend(self, items: int, size: float) -> None:
        """How much may lie here from now on, what does already included."""
        with self._lock:
            self._limit = items
            self._limit_bytes = size
