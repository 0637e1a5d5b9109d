"""The loop's side of a batcher for threads: a `Batcher` with an inbox that is part of its ledger.

1. Items in the inbox are accepted. Every query of the batcher first takes over the inbox, in the
   same stretch, so that results and fences include it.
2. Free room is lent to the inbox after every change of state, but not during an add on the slow
   path, so that no thread uses the room that it has found or overtakes it.
3. The inbox is shut until the batcher is open, and for good before a shutdown begins.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

from ..._core import checks
from ..._core.errors import ItemTooLarge, KeyFailedError
from ..batcher import Batcher
from ..dispatch import Dispatcher
from ..gathering.add_group import AddGroup
from ..gathering.pack import Leftover
from .inbox import Inbox, InboxEntry

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from ..._core.outcome import Tally
    from ..report import FlushReport, ShutdownReport, Stats
    from ..resolvable import Resolvable
    from ..setup import Setup

    Receipts = tuple[Resolvable | None, ...]

T = TypeVar("T")


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

    @property
    def needs_entries(self) -> bool:
        """Whether items need a size, a key or a tenant."""
        return self.setup.sized or self.setup.orders_itself

    @property
    def drops(self) -> bool:
        """Whether a full ledger drops items."""
        return self.setup.drops

    @property
    def makes_room(self) -> bool:
        """Whether a full ledger evicts older items for newer ones."""
        return self.setup.overflow == "drop_oldest"

    @property
    def deadline(self) -> float:
        """Default seconds for a shutdown."""
        return self.setup.shutdown_deadline

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
                is_in = self.makes_room and self._lifecycle.takes_items
                if is_in:
                    self.try_add(item)  # drops it if evicting older ones would not make room
            except Exception:  # a function of the item raised, which is already logged
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
