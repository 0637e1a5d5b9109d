"""The ledger: the accepted items without an outcome, their limit, outcomes and waiting producers.

1. Capacity is used by items that are queued, in flight or handed back, and by unused grants.
2. Waiters are served in order; a later one never overtakes, even if it needs less capacity.
3. A waiter that leaves after its grant passes the capacity on.
4. The fast path books bytes only: while its window is open, its items are counted by its length.
5. A tenant's ledger is a child of the whole ledger: items that enter or leave its queue are booked
   in both. The items of its batch leave the whole ledger when they are settled, and the child when
   the write ends.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .._core.outcome import Outcome, Tally

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Sized


@dataclass(slots=True, eq=False)
class Waiter:
    """A producer that waits for capacity."""

    items: int
    bytes: int
    future: asyncio.Future[None]
    granted: bool = False

    def grant(self) -> None:
        self.granted = True
        self.future.set_result(None)

    def fail(self, error: BaseException) -> None:
        if not self.future.done():
            self.future.set_exception(error)

    def use(self) -> None:
        """Use the grant, or pass it on."""
        self.granted = False


class Ledger:
    """Counts of the pending items, and their limit. `max_bytes` is `None` for no limit."""

    __slots__ = (
        "_granted_bytes", "_granted_items", "_open", "_queued", "_waiters", "_whole", "bytes",
        "handed_back", "in_flight", "max_bytes", "max_items", "outcomes", "queued_bytes", "refused",
        "returned", "withdrawn",
    )  # fmt: skip

    def __init__(self, max_items: int, max_bytes: int | None, whole: Ledger | None = None) -> None:
        self.max_items = max_items
        self.max_bytes = max_bytes
        self.outcomes: dict[Outcome, int] = dict.fromkeys(Outcome, 0)
        self.refused = 0
        self.returned = 0
        """Failed items whose source has them."""
        self.withdrawn = 0
        """Those of them that their source had withdrawn, and that are unsent."""
        self.bytes = 0
        self.queued_bytes = 0
        self.in_flight = 0
        self.handed_back = 0
        """Items known not to be applied, kept for the last-resort sink."""
        self._whole = whole
        self._queued = 0
        self._open: Sized = ()
        self._waiters: deque[Waiter] = deque()
        self._granted_items = 0
        self._granted_bytes = 0

    # -- counts ------------------------------------------------------------------------------------

    @property
    def queued(self) -> int:
        return self._queued + len(self._open)  # items not yet taken by a worker

    @property
    def inside(self) -> int:
        """Items without an outcome."""
        return self._queued + len(self._open) + self.in_flight + self.handed_back

    @property
    def settled(self) -> int:
        """Items with an outcome."""
        return sum(self.outcomes.values())

    def tally(self, backing_off: int) -> Tally:
        """Return the current counts; `backing_off` of the items in flight wait in a backoff."""
        counts = {outcome.value: count for outcome, count in self.outcomes.items()}
        return Tally(  # another thread may read in the middle of a step: outcomes before `returned`
            accepted=self.settled + self.inside,
            queued=self.queued + self.handed_back,
            in_flight=self.in_flight - backing_off,
            backing_off=backing_off,
            refused=self.refused,
            withdrawn=self.withdrawn,
            returned=self.returned,
            **counts,
        )

    # -- bookings ----------------------------------------------------------------------------------

    def open_window(self, window: Sized) -> None:
        """Start a window: appends of the fast path are counted by its length."""
        self._open = window

    def close_window(self, fresh: int) -> None:
        """Book the appends of the window, before any other change."""
        self._queued += fresh
        self._open = ()

    def entered(self, items: int, size: int) -> None:
        self._queued += items
        self.bytes += size
        self.queued_bytes += size
        if self._whole is not None:
            self._whole.entered(items, size)

    def left_queue(self, items: int, size: int) -> None:
        """Remove evicted items; the caller books their outcome."""
        self._queued -= items
        self.bytes -= size
        self.queued_bytes -= size
        if self._whole is not None:
            self._whole.left_queue(items, size)

    def taken(self, items: int, size: int) -> None:
        self._queued -= items
        self.queued_bytes -= size
        self.in_flight += items
        if self._whole is not None:
            self._whole.taken(items, size)

    def put_back(self, items: int, size: int) -> None:
        self.taken(-items, -size)

    def settle(self, items: int, size: int, outcome: Outcome) -> None:
        """Book the outcome of items in flight."""
        self.in_flight -= items
        self.bytes -= size
        self.outcomes[outcome] += items

    def note_returned(self, items: int) -> None:
        """Count failed items whose source has them, before their outcome is booked."""
        self.returned += items

    def note_withdrawn(self, items: int) -> None:
        """Count items that their source has withdrawn, before they are booked as unsent."""
        self.withdrawn += items

    def landed(self, items: int, size: int) -> None:
        """Remove a tenant's items when their write has ended."""
        self.in_flight -= items
        self.bytes -= size

    def ended(self, items: int, outcome: Outcome) -> None:
        """Book the outcome of items that are not in a batch."""
        self.outcomes[outcome] += items

    def hand_back(self, items: int, *, from_flight: bool = False) -> None:
        """Keep items for the last-resort sink."""
        self.handed_back += items
        if from_flight:
            self.in_flight -= items

    def take_handed_back(self, items: int) -> None:
        """Remove items after the last-resort sink's result; the caller books their outcome."""
        self.handed_back -= items

    def refuse(self, items: int) -> None:
        self.refused += items

    def recount(self, in_flight: int) -> None:
        """After a failed step: no item is queued any more, and this many are in flight.

        Items that were counted elsewhere have been lost track of, and end unknown.
        """
        lost = self._queued + self.in_flight - in_flight
        self._open, self._queued, self.in_flight = (), 0, in_flight
        self.outcomes[Outcome.UNKNOWN] += max(0, lost)

    # -- capacity ----------------------------------------------------------------------------------

    @property
    def contended(self) -> bool:
        """Whether a producer waits without a grant, so that later producers queue behind it."""
        return bool(self._waiters)

    @property
    def waiting(self) -> int:
        """Number of producers that wait without a grant."""
        return len(self._waiters)

    @property
    def granted(self) -> int:
        """Number of items with granted but unused capacity."""
        return self._granted_items

    @property
    def left(self) -> int:
        """Remaining capacity, in items."""
        inside = self._queued + len(self._open) + self.in_flight + self.handed_back
        return self.max_items - inside - self._granted_items

    @property
    def is_nearly_full(self) -> bool:
        """Whether less than a quarter of the capacity is left."""
        return 4 * self.left < self.max_items or (
            self.max_bytes is not None and 4 * self.left_bytes < self.max_bytes
        )

    @property
    def left_bytes(self) -> float:
        """Remaining capacity, in bytes; infinite without a limit."""
        if self.max_bytes is None:
            return math.inf
        return self.max_bytes - self.bytes - self._granted_bytes

    def fits(self, items: int, size: int) -> bool:
        """Return whether this fits now, regardless of waiters."""
        if items > self.left:
            return False
        return self.max_bytes is None or size <= self.left_bytes

    def admits(self, items: int, size: int) -> bool:
        """Return whether this fits now without overtaking a waiter."""
        return not self._waiters and self.fits(items, size)

    def would_fit(self, items: int, size: int) -> bool:
        """Return whether this would fit if all queued items were dropped."""
        return self.fits(items - self.queued, size - self.queued_bytes)

    def could_ever_fit(self, items: int, size: int) -> bool:
        """Return whether this fits into an empty ledger."""
        return items <= self.max_items and (self.max_bytes is None or size <= self.max_bytes)

    def join(self, waiter: Waiter) -> None:
        self._waiters.append(waiter)

    def grant(self) -> None:
        """Grant capacity to waiters in order, as long as the first one fits."""
        while self._waiters and self.fits(self._waiters[0].items, self._waiters[0].bytes):
            waiter = self._waiters.popleft()
            if waiter.future.done():
                continue
            self._granted_items += waiter.items
            self._granted_bytes += waiter.bytes
            waiter.grant()

    def leave(self, waiter: Waiter) -> None:
        """Remove a waiter that used its grant, or stopped waiting before or after the grant."""
        if waiter.granted:
            self._granted_items -= waiter.items
            self._granted_bytes -= waiter.bytes
            waiter.use()
        elif waiter in self._waiters:
            self._waiters.remove(waiter)

    def turn_away(self) -> list[Waiter]:
        """Remove and return all waiters without a grant."""
        waiters, self._waiters = list(self._waiters), deque()
        return waiters


class Producers:
    """Producers that wait, or have an unused grant."""

    def __init__(self) -> None:
        self._waiters: set[Waiter] = set()
        self.waits = 0
        """Number of waits so far."""

    def __len__(self) -> int:
        return len(self._waiters)

    def waits_again(self) -> None:
        """Count a wait."""
        self.waits += 1

    def join(self, waiter: Waiter) -> None:
        """Add a waiting producer."""
        self._waiters.add(waiter)

    def leave(self, waiter: Waiter) -> None:
        """Remove a producer."""
        self._waiters.discard(waiter)

    @property
    def any_granted(self) -> bool:
        """Whether a producer has an unused grant."""
        return any(waiter.granted for waiter in self._waiters)
