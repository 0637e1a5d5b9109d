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

On the loop's side:

1. Items in the inbox are accepted. Every query of the batcher first takes over the inbox, in the
   same stretch, so that results and fences include it.
2. Free room is lent to the inbox after every change of state, but not during an add on the slow
   path, so that no thread uses the room that it has found or overtakes it.
3. The inbox is shut until the batcher is open, and for good before a shutdown begins.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from .._core import checks
from .._core.errors import ItemTooLarge, KeyFailedError
from . import log
from .batcher import Batcher
from .dispatch import Dispatcher
from .gathering.pack import AddGroup, Leftover
from .item_mistakes import check_item

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Hashable, Sequence

    from .._core.outcome import Tally
    from .receipt import Resolvable
    from .report import FlushReport, ShutdownReport, Stats
    from .setup import Setup

    Receipts = tuple[Resolvable | None, ...]


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


class InboxBatcher(Batcher[T]):
    """A batcher with an inbox for threads; off the loop, only `entries` and properties are safe."""

    def __init__(self, setup: Setup[T], wake: Callable[[], object]) -> None:
        if setup.tenants.has_caps:
            rule = (
                "caps per tenant need a Batcher: items added by threads belong to no tenant "
                "until the loop takes them over"
            )
            raise checks.bad("tenants", setup.tenants, rule)
        self.inbox: Inbox[T] = Inbox(wake)
        self._is_shut = True
        self._holders = 0
        self._use(setup)

    def _new_dispatcher(self) -> Dispatcher[T]:
        return Dispatcher(self.setup, on_room=self._lend)

    def entries(self, items: tuple[T, ...], receipts: Receipts) -> list[InboxEntry[T]] | None:
        """Return the items as measured entries; `None` if a size or a failed key is refused."""
        try:
            group = self._intake.measured(items, receipts)
        except (ItemTooLarge, KeyFailedError):
            return None
        return [InboxEntry(*row) for row in group.rows()]

    # -- the inbox ---------------------------------------------------------------------------------

    def _lend(self) -> None:
        ledger = self._dispatcher.ledger
        is_closed = self._is_shut or self._holders or not self._lifecycle.accepting
        if is_closed or ledger.contended:
            self.inbox.lend(0, 0)
        else:
            self.inbox.lend(ledger.left, ledger.left_bytes)

    def take_in(self) -> None:
        """Take over the items of the inbox."""
        try:
            self._take_in()
        except BaseException as error:
            self._dispatcher.breaks(error)
            self._take_in()  # the rest: no later call would

    def _take_in(self) -> None:
        dispatcher = self._dispatcher
        dispatcher.ledger.refuse(self.inbox.take_refused())
        plain, entries = self.inbox.take()
        if plain or entries:
            group = AddGroup(tuple(plain)) if plain else AddGroup(*zip(*entries, strict=True))
            try:
                dispatcher.accept(group)
            except BaseException as error:  # they have been accepted by the inbox
                dispatcher.breaks(error)
                items = [Leftover(item, receipt, 0) for item, _, receipt, _ in group.rows()]
                dispatcher.books.hand_back(items, self._lifecycle.closed_error(), 0)
        announced = self.inbox.take_announced()
        if announced:
            self._take_late(announced)
        if self._lifecycle.broken is not None:
            dispatcher.give_up(self._lifecycle.closed_error())
        self._lend()

    def _take_late(self, items: list[T]) -> None:
        """Accept each announced item in place of older ones, or drop it; lend no room meanwhile."""
        self._holders += 1
        for item in items:
            try:
                is_in = self.setup.overflow == "drop_oldest" and self._lifecycle.takes_items
                if is_in:
                    self.try_add(item)  # drops it if evicting older ones would not make room
            except Exception as error:  # its producer has gone on
                log.not_accepted(self.setup.name, error)
                is_in = False
            if not is_in:
                self._intake.drop(AddGroup((item,)))
        self._holders -= 1

    @contextmanager
    def _held(self) -> Generator[None]:
        """Empty the inbox, and lend it no capacity meanwhile."""
        self._holders += 1
        try:
            self._lend()
            self.take_in()
            yield
        finally:
            self._holders -= 1
            self._lend()

    def shut(self) -> None:
        """Shut the inbox for good."""
        self._is_shut = True
        self.inbox.shut(shut=True)
        self._lend()

    # -- calls -------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Open, and lend the room for the first time."""
        await self.__aenter__()
        self.inbox.take_refused()  # earlier refusals belong to no tally
        self._is_shut = False
        self.inbox.shut(shut=False)
        self._lend()

    async def let_in(self, items: tuple[T, ...], receipts: Receipts, seconds: float | None) -> None:
        """Accept all or none on the slow path, waiting or dropping as the overflow policy says."""
        with self._held():
            self._window.yielded()  # other tasks have run; none may run until the append
            await self._intake.add(items, receipts, seconds)

    async def flush_all(self, timeout: float | None) -> FlushReport:
        """`flush`, including the inbox."""
        self.take_in()
        return await self.flush(timeout)

    async def shut_down(self, deadline: float, *, admit_waiting: bool) -> ShutdownReport[T]:
        """`shutdown`, including the inbox."""
        self.shut()
        self.take_in()
        return await self.shutdown(deadline, admit_waiting=admit_waiting)

    def full_stats(self) -> Stats:
        """`stats`, including the inbox."""
        self.take_in()
        return self.stats()

    def full_tally(self) -> Tally:
        """`tally`, including the inbox."""
        self.take_in()
        return self.tally()
