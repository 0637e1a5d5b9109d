"""The batches in flight."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import TYPE_CHECKING, Generic, TypeVar
from uuid import uuid4

from .._core.clock import Signal
from .._core.runtime.own_context import own_context
from .alarm import Alarm
from .flight import Flight
from .resolvable import Doubts

if TYPE_CHECKING:
    import contextvars
    from collections.abc import Callable, Iterator

    from .._core.batch import Reason
    from .._core.clock import Clock
    from .flight import FlightHost
    from .gathering.pack import Sealed
    from .setup import Setup

T = TypeVar("T")


class Flights(Generic[T]):
    """The flights of one batcher, their ids, and one timer for their flush timeouts."""

    def __init__(
        self,
        setup: Setup[T],
        clock: Callable[[], Clock],
        on_error: Callable[[BaseException], object],
    ) -> None:
        self._name, self._stretch = setup.name, setup.limits.stretch
        self._is_ordered = setup.is_ordered
        self._clock = clock
        self._flights: dict[Flight[T], None] = {}
        self._timer = Alarm(self.cut_late, on_error)
        self._id = uuid4().hex
        self._serial = itertools.count(1)
        self._context = own_context()
        self.doubts = Doubts()
        self.by_reason: Counter[Reason] = Counter()
        """Batches started, by reason."""
        self.changed = Signal()
        """Fires when the drain should check again."""

    def __len__(self) -> int:
        return len(self._flights)

    def __iter__(self) -> Iterator[Flight[T]]:
        return iter(tuple(self._flights))

    def launch(self, host: FlightHost[T], sealed: Sealed[T], now: float) -> Flight[T]:
        """Put a batch into a slot; its write begins later."""
        batch_id = f"{self._id}-{next(self._serial)}"
        stretch, timer = self._stretch, self._timer
        flight = Flight(host, sealed, now, timer, id=batch_id, name=self._name, stretch=stretch)
        self._flights[flight] = None
        self.by_reason[sealed.reason] += 1
        if self.doubts.count and (doubtful := self.doubts.launched(sealed.receipts)):
            flight.batch.delivery.doubt(doubtful)
        return flight

    def context(self) -> contextvars.Context:
        """The context of a write: empty except for the mark of a batcher's own work."""
        return self._context.copy()

    def discard(self, flight: Flight[T]) -> None:
        """Remove a flight that has ended."""
        self._flights.pop(flight, None)

    def tell_drain(self, *, every: bool) -> None:
        """Notify the drain of an ended flight or wait; until the cut, only the last one counts."""
        if every or not self._flights:
            self.changed.fire()

    def close(self) -> None:
        """Stop the timer: every flight has ended, or is left behind."""
        self._timer.cancel()

    def cut_late(self) -> None:
        """Cut the writes whose stretch is over, and set the timer for the next one."""
        clock = self._clock()
        now = clock.now()
        for flight in self:
            flight.check_stretches(now)
        ends = [at for flight in self._flights if (at := flight.stretch_ends_at) is not None]
        if ends:
            self._timer.set(clock, min(ends))

    @property
    def hold_back(self) -> bool:
        """Return whether the next batch waits for one in a backoff without a slot, for total order."""
        if not self._is_ordered or not self._flights:
            return False
        return not all(flight.batch.delivery.lets_pass for flight in self._flights)

    @property
    def any_lets_pass(self) -> bool:
        """Whether any flight lets later batches go first."""
        return any(flight.batch.delivery.lets_pass for flight in self._flights)

    @property
    def all_settled(self) -> bool:
        """Whether every item has an outcome."""
        return all(flight.left == 0 for flight in self._flights)

    def left_until(self, number: int) -> int:
        """Count the items without an outcome in batches up to this number."""
        return sum(flight.left for flight in self._flights if flight.sealed.number <= number)

    @property
    def backing_off(self) -> list[Flight[T]]:
        """Flights in a backoff."""
        return [flight for flight in self if flight.backing_off]
