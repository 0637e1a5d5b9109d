"""Accepted items of threads before the loop takes them: the part of the ledger outside the loop.

1. The loop lends room, and threads fill it. An appended item is accepted. Threads never append more
   than the lent room, so the ledger's bound holds while both sides work.
2. The loop is woken once between two takes, or a few times by concurrent threads.
3. The lock is held for a few steps in this file, never during a call that could block on a thread
   that needs it.
4. A signal handler or a finalizer that logs may add an item between any two of these steps, on the
   same thread. So the lock is reentrant, an item and its parts enter by one append, and the order
   of the steps in `put` and `take` leaves no item without a wake-up. In this case only the bound
   may be exceeded, by that item.
5. `KeyboardInterrupt` may also occur between any two steps, in the main thread. So a wake-up is
   recorded after it was made, for the take that it requests; the next call repeats an interrupted
   wake-up.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from ..item_mistakes import check_item

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

    from ..resolvable import Resolvable

T = TypeVar("T")


class InboxEntry(NamedTuple, Generic[T]):
    """An item with its size, receipt and key."""

    item: T
    size: int
    receipt: Resolvable | None
    key: Hashable = None


class Inbox(Generic[T]):
    """Items for the loop, plain or as entries. `wake` makes the loop take them; it must not block."""

    __slots__ = (
        "_announced", "_bytes", "_has_entries", "_is_shut", "_items", "_limit", "_limit_bytes",
        "_lock", "_refused", "_takings", "_wake", "_woken",
    )  # fmt: skip

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
        """Append a plain item; return false if there is no room for it."""
        ticket = None
        try:
            with self._lock:
                items = self._items
                if len(items) >= self._limit:
                    return False
                if self._woken != self._takings:
                    check_item(item)  # one of those between two takes
                    ticket = self._takings
                items.append(item)
            return True
        finally:
            if ticket is not None:
                self._wake_up(ticket)

    def put_all(self, entries: Sequence[InboxEntry[T]]) -> bool:
        """Append all or nothing."""
        size = sum(entry.size for entry in entries)
        ticket = None
        try:
            with self._lock:
                count = len(self._items) + len(entries)
                if count > self._limit or self._bytes + size > self._limit_bytes:
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
        """Pass an item for the loop to drop or to make room for; lend no room until it is taken.

        Returns false once the inbox is shut, or if `most` items are announced, since the loop then
        does not keep up.
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
        """Count items that the threads' side refused."""
        with self._lock:
            self._refused += count

    # -- the loop's side ---------------------------------------------------------------------------

    def take(self) -> tuple[list[T], list[InboxEntry[T]]]:
        """Take all items, either plain or as entries (one list is empty); they use up lent room."""
        fresh: list[Any] = []
        with self._lock:
            self._takings += 1  # first, so that later items request another take
            items = self._items
            self._items = fresh
            self._limit -= len(items)
            self._limit_bytes -= self._bytes
            self._bytes = 0
        if not self._has_entries:
            return items, []
        entry = InboxEntry
        try:
            return [], [item if type(item) is entry else entry(item, 0, None) for item in items]
        except BaseException:
            with self._lock:
                self._items[:0] = items
            raise

    def take_refused(self) -> int:
        """Return the number of items refused since the last call."""
        with self._lock:
            refused, self._refused = self._refused, 0
        return refused

    def lend(self, items: int, size: float) -> None:
        """Set the room, including the present content."""
        with self._lock:
            self._limit = 0 if self._announced else items
            self._limit_bytes = size

    def take_announced(self) -> list[T]:
        """Take over the announced items."""
        with self._lock:
            announced, self._announced = self._announced, []
        return announced

    def shut(self, *, shut: bool) -> None:
        """Refuse announced items from now on, or accept them again."""
        with self._lock:
            self._is_shut = shut
