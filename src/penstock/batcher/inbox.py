"""What threads have handed in and the loop has not yet taken over: the part of the ledger that lies outside the loop.

1. The loop lends room; threads fill it. An item is in when it was appended, and no more is appended than was lent, so the ledger's bound
   holds with both sides at work.
2. The loop is woken at most once between two takings.
3. The lock is held for a few steps of our own, never while anything is called that could wait for a thread that wants it.
4. Those steps may be interrupted by themselves: a signal handler or a finalizer that logs, say, may put an item in from between any two
   of them. So the lock is reentrant, an item comes in with all that belongs to it by one append, and the order of the steps in `put` and
   `take` sees to it that nothing is left lying without a wake-up. Only the bound may be passed then, by that item.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

    from .receipt import Slip

T = TypeVar("T")


class Entry(NamedTuple, Generic[T]):
    """An item and what belongs to it."""

    item: T
    size: int
    receipt: Slip | None
    key: Hashable = None


class Inbox(Generic[T]):
    """Items on their way to the loop, each plain or as an entry. `wake` asks the loop to take them, and must not block."""

    __slots__ = ("_awake", "_bytes", "_has_entries", "_is_shut", "_items", "_late", "_limit", "_limit_bytes", "_lock", "_refused", "_wake")

    def __init__(self, wake: Callable[[], object]) -> None:
        self._wake = wake
        self._lock = threading.RLock()
        self._awake = False
        self._limit = 0
        self._limit_bytes: float = 0
        self._bytes = 0
        self._refused = 0
        self._items: list[Any] = []
        self._has_entries = False
        self._late = 0
        self._is_shut = False

    def put(self, item: T) -> bool:
        """Append an item that nothing belongs to; False if there is no room for it now."""
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

    def put_all(self, entries: Sequence[Entry[T]]) -> bool:
        """Append all or nothing."""
        size = sum(entry.size for entry in entries)
        with self._lock:
            if len(self._items) + len(entries) > self._limit or self._bytes + size > self._limit_bytes:
                return False
            self._has_entries = True
            self._bytes += size
            self._items.extend(entries)
            if self._awake:
                return True
            self._awake = True
        self._wake()
        return True

    def claim(self, most: int) -> bool:
        """Announce an item that the loop is about to be handed by itself, to make room for it or to drop it; nothing comes in before it.

        False once the inbox is shut, or with `most` of them announced: the loop does not keep up.
        """
        with self._lock:
            if self._is_shut or self._late >= most:
                return False
            self._late += 1
            self._limit = 0
        return True

    def refuse(self, count: int) -> None:
        """Count items that were turned away on this side."""
        with self._lock:
            self._refused += count

    # -- the loop's side ----------------------------------------------------------------------------------------------

    def take(self) -> tuple[list[T], list[Entry[T]]]:
        """Take everything over, all plain or all as entries: one of the lists is empty. What is taken uses up room that was lent."""
        fresh: list[Any] = []
        with self._lock:
            self._awake = False  # first: what comes in from here on asks for a taking of its own
            items = self._items
            self._items = fresh
            self._limit -= len(items)
            self._limit_bytes -= self._bytes
            self._bytes = 0
        if not self._has_entries:
            return items, []
        return [], [item if type(item) is Entry else Entry(item, 0, None) for item in items]

    def take_refused(self) -> int:
        """How many were turned away since the last time."""
        with self._lock:
            refused, self._refused = self._refused, 0
        return refused

    def lend(self, items: int, size: float) -> None:
        """How much may lie here from now on, what does already included."""
        with self._lock:
            self._limit = 0 if self._late else items
            self._limit_bytes = size

    def claimed(self) -> None:
        """An announced item has been handed over."""
        with self._lock:
            self._late -= 1

    def shut(self, *, shut: bool) -> None:
        """Whether anything may be announced."""
        with self._lock:
            self._is_shut = shut
