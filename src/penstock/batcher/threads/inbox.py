"""What threads have handed in and the loop has not yet taken over: the part of the ledger that lies
outside the loop.

1. The loop lends room; threads fill it. An item is in when it was appended, and no more is appended
   than was lent, so the ledger's bound holds with both sides at work.
2. The loop is woken once between two takings, or a few times if several threads come at once.
3. The lock is held for a few steps of our own, never while anything is called that could wait for a
   thread that wants it.
4. Those steps may be interrupted by themselves: a signal handler or a finalizer that logs, say, may
   put an item in from between any two of them. So the lock is reentrant, an item comes in with all
   that belongs to it by one append, and the order of the steps in `put` and `take` sees to it that
   nothing is left lying without a wake-up. Only the bound may be passed then, by that item.
5. An exception may strike between any two of them as well: `KeyboardInterrupt`, in the main thread.
   So a wake-up is noted after it was made, for the taking it asks for; one that was struck is made
   by the next call.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

    from ..receipt import ReceiptBase

T = TypeVar("T")


class Entry(NamedTuple, Generic[T]):
    """An item and what belongs to it."""

    item: T
    size: int
    receipt: ReceiptBase | None
    key: Hashable = None


class Inbox(Generic[T]):
    """Items on their way to the loop, each plain or as an entry. `wake` asks the loop to take them,
    and must not block.
    """

    __slots__ = (
        "_announced",
        "_bytes",
        "_has_entries",
        "_is_shut",
        "_items",
        "_limit",
        "_limit_bytes",
        "_lock",
        "_refused",
        "_takings",
        "_wake",
        "_woken",
    )

    def __init__(self, wake: Callable[[], object]) -> None:
        self._wake = wake
        self._lock = threading.RLock()
        self._takings = 0
        self._woken = -1
        self._limit = 0
        self._limit_bytes: float = 0
        self._bytes = 0
        self._refused = 0
        self._items: list[Any] = []
        self._has_entries = False
        self._announced: list[T] = []
        self._is_shut = False

    def put(self, item: T) -> bool:
        """Append an item that nothing belongs to; False if there is no room for it now."""
        ticket = None
        try:
            with self._lock:
                items = self._items
                if len(items) >= self._limit:
                    return False
                if self._woken != self._takings:
                    ticket = self._takings
                items.append(item)
            return True
        finally:
            if ticket is not None:
                self._wake_up(ticket)

    def put_all(self, entries: Sequence[Entry[T]]) -> bool:
        """Append all or nothing."""
        size = sum(entry.size for entry in entries)
        ticket = None
        try:
            with self._lock:
                if (
                    len(self._items) + len(entries) > self._limit
                    or self._bytes + size > self._limit_bytes
                ):
                    return False
                if self._woken != self._takings:
                    ticket = self._takings
                self._has_entries = True
                self._bytes += size
                self._items.extend(entries)
            return True
        finally:
            if ticket is not None:
                self._wake_up(ticket)

    def announce(self, item: T, most: int) -> bool:
        """Hand over an item for which the loop has to make room, or which it drops; nothing comes
        in before the loop has taken it.

        False once the inbox is shut, or with `most` of them announced: the loop does not keep up.
        """
        ticket = None
        try:
            with self._lock:
                if self._is_shut or len(self._announced) >= most:
                    return False
                if self._woken != self._takings:
                    ticket = self._takings
                self._limit = 0
                self._announced.append(item)
            return True
        finally:
            if ticket is not None:
                self._wake_up(ticket)

    def _wake_up(self, ticket: int) -> None:
        self._wake()
        self._woken = ticket

    def refuse(self, count: int) -> None:
        """Count items that were turned away on this side."""
        with self._lock:
            self._refused += count

    # -- the loop's side ---------------------------------------------------------------------------

    def take(self) -> tuple[list[T], list[Entry[T]]]:
        """Take everything over, all plain or all as entries: one of the lists is empty. What is
        taken uses up room that was lent.
        """
        fresh: list[Any] = []
        with self._lock:
            self._takings += 1  # first: what comes in from here on asks for a taking of its own
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
            self._limit = 0 if self._announced else items
            self._limit_bytes = size

    def take_announced(self) -> list[T]:
        """Take over the announced items."""
        with self._lock:
            announced, self._announced = self._announced, []
        return announced

    def shut(self, *, shut: bool) -> None:
        """Whether anything may be announced."""
        with self._lock:
            self._is_shut = shut
