"""Snapshots and reports of a batcher, all frozen."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, TypeVar

from .._core.errors import DrainTimeout

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .._core.outcome import Outcome, Tally
    from .._core.spooling import SpoolStats

T = TypeVar("T")


SHOWN_FROM = 0.0005
"""Minimum seconds of a phase that a report's line shows."""
MOST_TENANTS = 20
"""Maximum number of tenants that are listed individually."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantStats:
    """A tenant at one moment."""

    tenant: object
    inside: int
    """Its items in the ledger; the items of a write leave together when it has ended."""
    queued: int
    """Its items that no worker has taken."""
    in_flight_batches: int
    """Its batches that are being written or back off."""
    held_keys: int
    """Its held keys."""
    held_items: int
    """Items of held keys."""
    waiting_producers: int
    """Producers that wait for its part of the ledger."""
    oldest_age: float | None
    """Seconds since the oldest of its items that no worker has taken was accepted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DestinationStats:
    """The destination's state as reported by the decorators; with several destinations, the worst
    state.
    """

    state: str = "available"
    """`available`, `throttled`, `circuit_open`, `unavailable` or `refused`."""
    seconds: float = 0.0
    """Seconds since it was last available; 0 while it is."""
    reason: str = ""
    """The last error's type and text, without item values."""
    repair: str = ""
    """The action that makes a refusing destination accept writes again, if the sink knows it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorStats:
    """The last error of a write, whatever the outcome of its items."""

    error_type: str
    """The name of the exception's class."""
    error_class: str
    """Its class for retries: `permanent`, `transient`, `throttle`, `unavailable`, `refused`,
    `unknown`, `stopped` or `unlisted`.
    """
    message: str
    """Type and text, without item values."""
    age: float
    """Seconds since the error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stats:
    """A batcher at one moment."""

    name: str
    state: str
    """`new`, `opening`, `open`, `closing`, `closed`, `broken`, or `forked`: open in the parent of
    this process. With `open="lazy"` it takes items while it is `opening`.
    """
    tally: Tally
    capacity_items: int
    """The ledger's bound."""
    max_items: int
    """Maximum items in a batch: the limit, or an adaptive batcher's lower current value."""
    max_delay: float
    """Seconds from a batch's first item until it is due: the limit."""
    workers: int
    """Maximum batches in flight: the limit, or an adaptive batcher's lower current value."""
    open_items: int
    sealed_batches: int
    in_flight_batches: int
    backing_off_batches: int
    waiting_producers: int
    waits: int
    """Number of adds that had to wait for room."""
    oldest_age: float | None
    """Seconds since the oldest item that no worker has taken was accepted."""
    held_keys: int = 0
    """Keys held because one of their items failed for good; see `Batcher(on_key_failure=...)`."""
    held_items: int = 0
    """Items of held keys; included in the queued items."""
    tenants: int = 0
    """Tenants with pending items or a held key."""
    busiest_tenants: tuple[TenantStats, ...] = ()
    """The twenty tenants with the most pending items, in descending order."""
    flushes: Mapping[str, int] = field(default_factory=dict[str, int])
    """Number of batches taken by a worker, by seal reason."""
    throttled_seconds: float = 0.0
    """Remaining throttle time, in seconds."""
    destination: DestinationStats = field(default_factory=DestinationStats)
    last_error: ErrorStats | None = None
    retries: int = 0
    """Number of times that a batch, or the rest of one, was sent again."""
    spool: SpoolStats | None = None
    """Its spool, if it has one and was open."""

    def __str__(self) -> str:
        return f"batcher {self.name!r} {self.state}: {self.tally}"


@dataclass(frozen=True, slots=True, kw_only=True)
class FlushReport:
    """The result of a flush. In a boolean context it is `ok`."""

    remaining: int
    """Items accepted before the call that were still inside at the timeout."""
    outcomes: Mapping[Outcome, int]
    """Outcome counts of the batches that the flush waited for."""

    @property
    def complete(self) -> bool:
        """Whether nothing remained, whatever the outcomes."""
        return self.remaining == 0

    @property
    def ok(self) -> bool:
        """Whether nothing remained and every item is safe: delivered, spooled or dead-lettered."""
        return self.complete and all(outcome.is_safe for outcome in self.outcomes)

    def __bool__(self) -> bool:
        return self.ok


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeSpent:
    """A shutdown's seconds by phase, which add up to its duration, and the destination's states."""

    drain: float = 0.0
    """Writing the pending items, with retries and backoffs, until none was left or writes were
    cut off.
    """
    cut: float = 0.0
    """Waiting for cut writes to end."""
    last_resort: float = 0.0
    """Handing unsent items to the last resort."""
    close: float = 0.0
    """Closing the sink."""
    destination: Mapping[str, float] = field(default_factory=dict[str, float])
    """Seconds in which the destination was `unavailable`, `refused`, `throttled` or behind an open
    breaker (`circuit_open`).
    """
    retries: int = 0
    """Number of times that a batch was sent again."""
    last_error: str = ""
    """The last error of a write during the shutdown: type and text without item values."""

    def __str__(self) -> str:
        parts = [
            f"{name.replace('_', ' ')} {seconds:.3f} s"
            for name in ("drain", "cut", "last_resort", "close")
            if (seconds := getattr(self, name)) >= SHOWN_FROM
        ]
        states = [
            f"{state.replace('_', ' ')} for {s:.3f} s" for state, s in self.destination.items()
        ]
        if states:
            parts.append(f"destination {', '.join(states)}")
        if self.retries:
            parts.append(f"{self.retries} retries")
        if self.last_error:
            parts.append(f"last error {self.last_error}")
        return "; ".join(parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShutdownReport(Generic[T]):
    """The outcomes of all items. Final: a late completion changes nothing."""

    name: str
    tally: Tally
    seconds: float
    """The duration of the shutdown."""
    unsent: tuple[T, ...] = field(repr=False)
    """The items known not to be applied, for the caller to keep. Without withdrawn ones
    (`tally.withdrawn`), which their source has.
    """
    unknown: tuple[T, ...] = field(repr=False)
    """The items whose outcome became unknown during the shutdown: their write was cut off."""
    parked: int = 0
    """Items that were never sent because a failed item of their key held them back."""
    left_behind: int = 0
    """Writes that ignored their cancellation and were still running at the deadline."""
    spent: TimeSpent = field(default_factory=TimeSpent)
    """The phases of the shutdown."""
    ended_by: str = ""
    """The reason why the drain ended before every item was written: `the deadline`, `a
    cancellation`, or the failure that had broken the batcher (type and text, no values). Empty if
    it ran to its end: then only held items and unknown outcomes are missing.
    """
    never_opened: str = ""
    """The reason why a lazily opened sink was never open, without secrets; empty otherwise."""

    @property
    def complete(self) -> bool:
        """Whether no item stayed unsent, except withdrawn ones, and no write was cut off."""
        return self.tally.unsent == self.tally.withdrawn and not self.unknown

    def verify(self) -> None:
        """Raise `AssertionError` unless every accepted item has exactly one outcome."""
        self.tally.verify()
        if self.tally.inside:
            message = f"{self.tally.inside} items are still inside after the shutdown: {self.tally}"
            raise AssertionError(message)

    def raise_if_incomplete(self) -> None:
        """Raise `DrainTimeout` with this report unless it is complete."""
        if not self.complete:
            raise DrainTimeout(self)

    def __str__(self) -> str:
        state, spent = "complete" if self.complete else "INCOMPLETE", str(self.spent)
        line = f"shutdown of batcher {self.name!r} {state} after {self.seconds:.3f} s"
        if self.ended_by and not self.complete:
            line = f"{line} (ended by {self.ended_by})"
        line = f"{line}: {self.tally}"
        line = f"{line} (spent on: {spent})" if spent else line
        return (
            f"{line}; the sink was never open: {self.never_opened}" if self.never_opened else line
        )
