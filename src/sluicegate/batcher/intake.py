"""The slow path of adding: measure, let other tasks run, wait for room, then append.

*Yield first, append last*: a producer waits before its item is appended, and never after. So a
cancelled `add` has not accepted its item. A group waits for its `reservations`, one after another.
"""

from __future__ import annotations

import asyncio
from itertools import accumulate, takewhile
from typing import TYPE_CHECKING, Generic, Never, TypeVar

from .._core.batch import Reason
from .._core.errors import (
    AddTimeout,
    DeliverTimeout,
    ItemTooLarge,
    KeyFailedError,
    LedgerFull,
    SluicegateError,
)
from .._core.runtime.loops import Exit
from .gathering.pack import AddGroup, Leftover
from .gathering.window import NOTHING, NeedsSlowPath
from .item_mistakes import check_item
from .ledger import Waiter
from .receipt import Receipt, gather
from .reservations import WholeReservation, tenant_reservations
from .setup import checked_size

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .dispatch import Dispatcher
    from .gathering.window import Known
    from .receipt import Resolvable
    from .reservations import Reservation, TenantReservation


T = TypeVar("T")

RETRY_AFTER = 5.0
"""Default `retry_after` of a refused producer, in seconds."""


class Intake(Generic[T]):
    """Admits groups of items, makes their producers wait, or refuses or drops them."""

    def __init__(self, dispatcher: Dispatcher[T]) -> None:
        self._dispatcher = dispatcher
        self._setup = dispatcher.setup
        self._lifecycle = dispatcher.lifecycle
        self._ledger = dispatcher.ledger
        self._window = dispatcher.window
        self._is_plain = self._setup.measure is None and dispatcher.gathering.identity is None

    async def add(
        self,
        items: tuple[T, ...],
        receipts: tuple[Resolvable | None, ...] | None,
        seconds: float | None,
        known: Known = NOTHING,
    ) -> None:
        """The slow path: accept all items or none. Suspends and raises like `Batcher.add`.

        `known` has the values that the fast path has looked up for a single item.
        """
        lifecycle, window = self._lifecycle, self._window
        lifecycle.check_open()
        if window.yield_due:
            window.yielded()
            await lifecycle.clock.sleep(0)
            if not lifecycle.takes_items:
                lifecycle.check_open()
            known = NOTHING  # the item may have changed meanwhile
            try:
                if len(items) == 1 and window.append(items[0], receipts[0] if receipts else None):
                    return  # the fast path is open again
            except NeedsSlowPath as declined:
                known = declined.known
        window.came(len(items))
        group = self.group(items, receipts, known)
        if self._takes_at_once(group):
            return
        if self._setup.drops:
            self.drop(group)
        elif self._setup.overflow == "reject" or seconds == 0:
            self._refuse(group)
        else:
            await self._wait_for_room(group, seconds)

    def try_add(self, item: T, known: Known) -> bool:
        """Accept the item if there is capacity now, like `Batcher.try_add`."""
        if not self._lifecycle.takes_items:
            self._ledger.refuse(1)
            return False
        try:
            group = self.group((item,), None, known)
            if self._takes_at_once(group):
                return True
        except (ItemTooLarge, KeyFailedError):
            return False
        if self._setup.drops:
            self.drop(group)
        else:
            self._ledger.refuse(1)
        return False

    def group(
        self,
        items: tuple[T, ...],
        receipts: tuple[Resolvable | None, ...] | None,
        known: Known,
    ) -> AddGroup[T]:
        """Measure and key the items; raises `ItemTooLarge`, `KeyFailedError` and errors of
        functions.
        """
        if self._is_plain and len(items) <= self._ledger.max_items:
            check_item(items[0])
            return AddGroup(items, None, receipts)
        try:
            return self.measured(items, receipts, known)
        except (ItemTooLarge, KeyFailedError):
            self._ledger.refuse(len(items))
            raise

    def measured(
        self,
        items: tuple[T, ...],
        receipts: tuple[Resolvable | None, ...] | None,
        known: Known = NOTHING,
        *,
        together: bool = True,
    ) -> AddGroup[T]:
        """Like `group`, without counting refused items. May be called in any thread.

        Unless `together`, the items need not fit at the same time.
        """
        measure, identities = self._setup.measure, self._dispatcher.gathering.identities
        sizes = keys = None
        check_item(items[0])
        if measure is not None:
            sizes = tuple(map(checked_size, known.sizes or map(measure, items)))
        self._check_sizes(len(items), sizes or (0,), together=together)
        if identities is not None:
            keys = identities(items, *known.tenants)
        return AddGroup(items, sizes, receipts, keys)

    def _check_sizes(self, items: int, sizes: tuple[int, ...], *, together: bool) -> None:
        """Raise `ItemTooLarge` for items that are refused for their size or could never fit."""
        most, ledger = self._setup.limits.max_bytes, self._ledger
        if self._setup.oversize == "reject" and most is not None and max(sizes) > most:
            raise ItemTooLarge(f"an item of {max(sizes)} bytes is larger than max_bytes={most}")
        if not together:
            items, sizes = 1, (max(sizes),)
        if not ledger.could_ever_fit(items, sum(sizes)):
            caps = f"max_pending_items={ledger.max_items}, max_pending_bytes={ledger.max_bytes}"
            raise ItemTooLarge(f"{items} items of {sum(sizes)} bytes can never fit: {caps}")

    def _takes_at_once(self, group: AddGroup[T]) -> bool:
        """Accept the group if there is room, or if the policy may evict enough older items."""
        dispatcher = self._dispatcher
        tenants = () if self._setup.tenant is None else self._tenants(group)
        if self._ledger.admits(len(group.items), group.bytes) and (
            not tenants or all(reservation.fits for reservation in tenants)
        ):
            dispatcher.accept(group)
            return True
        if self._setup.overflow != "drop_oldest":
            return False
        reservations = self._reservations(group, tenants)
        if not all(reservation.may_fit for reservation in reservations):
            return False
        with dispatcher.step():
            gone = [item for each in reservations for item in self.evict_for(each)]
        dispatcher.accept(group)
        try:
            dispatcher.books.tell_dropped(gone)
        except BaseException as error:
            dispatcher.breaks(error)
        return True

    def evict_for(self, reservation: Reservation) -> list[T]:
        """Evict the oldest queued items until there is room; return them."""
        self._window.close()
        gone: list[Leftover[T]] = []
        try:
            while not reservation.fits and (evicted := reservation.evict()) is not None:
                gone.append(Leftover(evicted.item, evicted.receipt, 0))
            self._dispatcher.books.drop(gone)
        except BaseException as error:
            self._dispatcher.breaks(error)
            self._dispatcher.books.drop(gone)  # they have left the queue
            raise
        self._dispatcher.check_fences()
        self._dispatcher.refresh()
        return [leftover.item for leftover in gone]

    def drop(self, group: AddGroup[T]) -> None:
        """Accept items and drop them immediately."""
        books = self._dispatcher.books
        try:
            books.drop([Leftover(item, receipt, 0) for item, _, receipt, _ in group.rows()])
        except BaseException as error:
            raise self._broken(error) from None
        try:
            books.tell_dropped(group.items)
        except BaseException as error:
            self._dispatcher.breaks(error)

    def _tenants(self, group: AddGroup[T]) -> Sequence[TenantReservation[T]]:
        if self._setup.tenant is None:
            return ()
        try:
            return tenant_reservations(self._dispatcher.gathering, group, self._ledger)
        except ItemTooLarge:
            self._ledger.refuse(len(group.items))
            raise

    def _reservations(
        self, group: AddGroup[T], tenants: Sequence[TenantReservation[T]]
    ) -> list[Reservation]:
        """Return the reservations of all ledgers, in the order of waiting."""
        gathering, items = self._dispatcher.gathering, len(group.items)
        return [*tenants, WholeReservation(self._ledger, gathering, items, group.bytes)]

    def _refuse(self, group: AddGroup[T]) -> Never:
        """Refuse a group without room: the policy rejects, or the timeout is 0."""
        self._ledger.refuse(len(group.items))
        kind = LedgerFull if self._setup.overflow == "reject" else AddTimeout
        reservations = self._reservations(group, self._tenants(group))
        full = next(each for each in reservations if not each.fits).full
        raise kind(f"batcher {self._setup.name!r}: {full}", retry_after=self._retry_after())

    async def _wait_for_room(self, group: AddGroup[T], seconds: float | None) -> None:
        """Reserve room in one ledger after the other; if the wait ends early, pass the room on."""
        joined: list[tuple[Reservation, Waiter]] = []
        try:
            await self.wait_to_submit(
                group, joined, lambda: self._dispatcher.accept(group), seconds=seconds
            )
        except BaseException:
            self._ledger.refuse(len(group.items))
            raise

    def _broken(self, error: BaseException) -> BaseException:
        """Break the batcher after a failed step; return the error for its producer."""
        self._dispatcher.breaks(error)
        return error if isinstance(error, Exit) else self._lifecycle.closed_error()

    def fitting(self, group: AddGroup[T], *, first: bool) -> int:
        """Return how many of the first items fit now without overtaking a waiter; `first`: none is
        in front.
        """
        ledger, count = self._ledger, len(group.items)
        if ledger.contended and not first:
            return 0
        count = max(0, min(count, ledger.left))
        if group.sizes is not None and ledger.max_bytes is not None:
            sums = accumulate(group.sizes[:count])
            count = sum(1 for _ in takewhile(lambda size: size <= ledger.left_bytes, sums))
        if count and self._setup.tenants.has_caps:
            return int(all(each.fits for each in self._tenants(group.part(0, 1))))
        return count

    async def wait_to_submit(
        self,
        group: AddGroup[T],
        joined: list[tuple[Reservation, Waiter]],
        take: Callable[[], object],
        *,
        seconds: float | None = None,
    ) -> None:
        """Wait for the group's room, then call `take` to use it, without suspending in between."""
        dispatcher, clock = self._dispatcher, self._lifecycle.clock
        is_in = False
        dispatcher.producers.waits_again()
        try:
            if seconds is None:
                await self._reserve(group, joined)
            else:
                async with clock.timeout_at(clock.now() + seconds):
                    await self._reserve(group, joined)
            self._ledger.leave(joined[-1][1])  # the items use the granted room
            take()
            is_in = True
        except TimeoutError:
            full = joined[-1][0].full
            message = f"batcher {self._setup.name!r}: no room within {seconds:g} s; {full}"
            raise AddTimeout(message, retry_after=self._retry_after()) from None
        except (SluicegateError, asyncio.CancelledError, GeneratorExit):
            raise
        except BaseException as error:
            raise self._broken(error) from None
        finally:
            try:
                if is_in and len(joined) == 1:
                    dispatcher.flights.tell_drain(every=self._lifecycle.gave_up)
                else:
                    for reservation, waiter in joined:
                        reservation.leave(waiter)
                    dispatcher.notify()
                joined.clear()
            except BaseException as error:
                dispatcher.breaks(error)

    async def _reserve(self, group: AddGroup[T], joined: list[tuple[Reservation, Waiter]]) -> None:
        """Wait for room, in the whole ledger last; do not suspend after the last grant."""
        for reservation in self._reservations(group, self._tenants(group)):
            future = self._lifecycle.loop.create_future()
            waiter = Waiter(reservation.items, reservation.size, future)
            joined.append((reservation, waiter))
            reservation.join(waiter)
            if not waiter.granted:
                await self._granted(waiter)

    async def _granted(self, waiter: Waiter) -> None:
        """Return once the room is granted, without suspending afterwards."""
        producers = self._dispatcher.producers
        producers.join(waiter)
        self._dispatcher.producer_waits()
        try:
            await waiter.future
        finally:
            producers.leave(waiter)
        if not self._lifecycle.admitting:
            self._lifecycle.check_open()

    def _retry_after(self) -> float:
        lifecycle = self._lifecycle
        return max(RETRY_AFTER, lifecycle.throttled_until - lifecycle.clock.now())


class SpoolIntake(Intake[T]):
    """The intake of a batcher with a spool: a producer without a receipt waits until its items are
    stored, and none is accepted while the spool is full unless producers wait for that.
    """

    def __init__(self, dispatcher: Dispatcher[T]) -> None:
        super().__init__(dispatcher)
        spool = dispatcher.setup.spool
        assert spool is not None
        self._spool = spool
        if spool.adds_stored:
            self._window.keep_for_trying()

    async def add(
        self,
        items: tuple[T, ...],
        receipts: tuple[Resolvable | None, ...] | None,
        seconds: float | None,
        known: Known = NOTHING,
    ) -> None:
        """Accept the items, and wait for them to be stored. Raises `ItemFailed` if one was not, and
        `DeliverTimeout` with the receipt if that is not known in time.
        """
        waits = receipts is None and self._spool.adds_stored
        own = tuple([Receipt() for _ in items]) if waits else ()
        ends = None if seconds is None else self._lifecycle.clock.now() + seconds
        await super().add(items, own or receipts, seconds, known)
        if not own:
            return
        try:
            async with self._lifecycle.clock.timeout_at(ends):
                await gather(own)
        except TimeoutError:
            late = next((each for each in own if each.outcome is None), None)
            if late is not None:
                raise DeliverTimeout(late, seconds or 0.0) from None
            await gather(own)  # an outcome of the last moment

    def _takes_at_once(self, group: AddGroup[T]) -> bool:
        if self._setup.overflow != "block" and self._spool.full():
            return False
        if not super()._takes_at_once(group):
            return False
        if self._spool.adds_stored and self._ledger.inside == len(group.items):
            self._lifecycle.loop.call_soon(self._write_alone, self._ledger.inside)
        return True

    def _write_alone(self, count: int) -> None:
        """Write items immediately if no others have come in the same turn of the loop."""
        dispatcher = self._dispatcher
        if self._ledger.inside == count and self._lifecycle.takes_items:
            now = dispatcher.clock.now()
            dispatcher.window.close()
            dispatcher.gathering.gatherer.seal(Reason.TIME, now)
            dispatcher.advance(now)

    def _refuse(self, group: AddGroup[T]) -> Never:
        if self._setup.overflow != "reject" or not (told := self._spool.full()):
            super()._refuse(group)
        self._ledger.refuse(len(group.items))
        raise LedgerFull(f"batcher {self._setup.name!r}: {told}", retry_after=self._retry_after())
