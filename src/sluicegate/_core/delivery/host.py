"""The interfaces of a delivery: the host's books, backoffs and slots, the branches of a fork; and
the condition of a destination, which decorators report through them to logs, metrics and `stats()`.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from ..classify import causes
from ..errors import ErrorClass, RefusedError
from ..logs import for_log

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from ..clock import Clock, Signal
    from ..outcome import Outcome
    from .states import Tries

    Details = Mapping[int, object] | None


class Reports(Protocol):
    """Receives reports about the destination (condition `None` means available)."""

    def heard(self, errors: Iterable[BaseException]) -> None: ...
    def reported(self, source: object, condition: Condition | None) -> None: ...
    def retrying(self, kind: ErrorClass, items: int, delay: float) -> None: ...
    def throttled(self, until: float) -> None: ...


class Books(Reports, Protocol):
    """Receives outcomes, and reports about the destination."""

    def book_outcome(self, indices: Sequence[int], outcome: Outcome, details: Details) -> None: ...


ReportsT = TypeVar("ReportsT", bound=Reports)


class PassesReports(Generic[ReportsT]):
    """Passes reports about the destination on to other books immediately, if there are any."""

    __slots__ = ("books",)

    def __init__(self, books: ReportsT | None) -> None:
        self.books = books

    def heard(self, errors: Iterable[BaseException]) -> None:
        if self.books is not None:
            self.books.heard(errors)

    def reported(self, source: object, condition: Condition | None) -> None:
        """Pass on the condition of a destination, as `source` knows it; `None`: available."""
        if self.books is not None:
            self.books.reported(source, condition)

    def retrying(self, kind: ErrorClass, items: int, delay: float) -> None:
        """Pass on that `items` will be sent again after `delay` seconds."""
        if self.books is not None:
            self.books.retrying(kind, items, delay)

    def throttled(self, until: float) -> None:
        if self.books is not None:
            self.books.throttled(until)


class Backoffs(Protocol):
    """Times the backoffs of a delivery: clock, shutdown and pauses.

    `deadline` is the time at which a shutdown cuts writes, once it has begun. `pause` ends at its
    time, at a signal or, unless `through_stop`, when a shutdown begins.
    """

    @property
    def clock(self) -> Clock: ...
    @property
    def deadline(self) -> float | None: ...
    @property
    def stopping(self) -> bool: ...
    @property
    def waits_for_repair(self) -> bool: ...
    async def pause(self, until: float, *signals: Signal, through_stop: bool) -> None: ...


class Slots(Backoffs, Protocol):
    """Paces a delivery: backoffs, the flush slot and the flush timeout.

    `take_slot` has precedence over new batches; `force_slot` may exceed the limit. `watch` restarts
    an activity's flush timeout.
    """

    def give_slot(self) -> None: ...
    async def take_slot(self) -> None: ...
    def force_slot(self) -> None: ...
    def watch(self, activity: object) -> None: ...
    def unwatch(self, activity: object) -> None: ...


class Branches(Protocol):
    """The branches of a fork, as the forked delivery sees them."""

    @property
    def members(self) -> frozenset[int]: ...
    @property
    def has_stragglers(self) -> bool: ...
    def withdraw(self, indices: Collection[int]) -> None: ...
    def verdict(self, index: int) -> Outcome: ...
    def has_part_of(self, index: int) -> bool: ...
    def tries(self, index: int) -> Tries | None: ...


class DestinationState(enum.Enum):
    """Whether a destination accepts writes, from best to worst."""

    __hash__ = object.__hash__  # one C call; Enum's own hash is Python code

    AVAILABLE = "available"
    THROTTLED = "throttled"
    """Has requested a pause; lasts until the pause has ended and a write has succeeded."""
    CIRCUIT_OPEN = "circuit_open"
    """A circuit breaker blocks calls to it."""
    UNAVAILABLE = "unavailable"
    """Cannot be reached. One batch at a time probes it."""
    REFUSED = "refused"
    """Reachable, but refuses every write until it is repaired. One batch at a time probes it."""


SEVERITY = {state: place for place, state in enumerate(DestinationState)}
STATE_OF = {
    ErrorClass.THROTTLE: DestinationState.THROTTLED,
    ErrorClass.UNAVAILABLE: DestinationState.UNAVAILABLE,
    ErrorClass.REFUSED: DestinationState.REFUSED,
}


@dataclass(frozen=True, slots=True)
class Condition:
    """A state other than available, and its reason as text: an error would keep items alive."""

    state: DestinationState
    reason: str
    """The reason, in one line without item values."""
    repair: str = ""
    """The operator's remedy, if the destination refuses writes."""

    @classmethod
    def after(cls, state: DestinationState, error: BaseException) -> Condition:
        """Return the condition of a destination after `error`."""
        repairs = (link.repair for link in causes(error) if isinstance(link, RefusedError))
        return cls(state, for_log(error), next(repairs, ""))
