"""The states of a batcher's destinations, for its log, its observers and `stats()`.

1. Each decorator that knows a destination (a retry, a breaker) reports its state; a stack may have
   several.
2. A problem (unavailable, refusing, throttling, or behind an open breaker) is logged once, then
   every `EVERY` seconds, and once more when it has ended.
3. A problem that returns within `FLAP` seconds of its end is not logged again unless it lasts: a
   single refused item can cause many of them in a second. Throttling normally comes and goes, so it
   is logged again at the earliest `EVERY` seconds after its last line.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from .._core.classify import classified
from .._core.delivery.host import SEVERITY, Condition, DestinationState
from .._core.errors import ErrorClass, StoppedError
from .._core.logs import for_log, log_safely
from .._core.sink import classifier_of
from .report import DestinationStats, ErrorStats

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Mapping

    from .._core.batch import Batch
    from .._core.clock import Signal, TimerHandle
    from .._core.observer import Observers
    from .._core.sink import Sink
    from .ledger import Ledger, Producers
    from .lifecycle import Lifecycle


logger = logging.getLogger("sluicegate.batcher")

_BEGINS = {
    DestinationState.THROTTLED: "the destination has been throttling",
    DestinationState.CIRCUIT_OPEN: "the open circuit breaker has kept writes from the destination",
    DestinationState.UNAVAILABLE: "the destination has been unavailable",
    DestinationState.REFUSED: "the destination has refused every write",
}

EVERY = 60.0
"""Seconds between two lines about the same problem."""
FLAP = 5.0
"""Seconds within which a returning problem counts as the same one."""
NEVER = -float("inf")
"""The time of an event that has not happened."""


class Monitor:
    """The states and errors of one batcher's destinations."""

    def __init__(
        self,
        lifecycle: Lifecycle,
        ledger: Ledger,
        producers: Producers,
        observers: Observers,
        *,
        pressed: Signal,
        sink: Sink[Any],
    ) -> None:
        self._lifecycle = lifecycle
        self._ledger = ledger
        self._producers = producers
        self._observers = observers
        self._pressed = pressed
        self._classify = classifier_of(sink)
        self._conditions = Conditions()
        self._timer: TimerHandle | None = None
        self._is_closed = False
        self._last_error: tuple[float, ErrorStats] | None = None
        self.retries = 0
        """The number of retries of batches."""

    # -- reports of decorators and writes ----------------------------------------------------------

    def reported(self, source: object, condition: Condition | None) -> None:
        """Note the state of a decorator's destination; `None` means available."""
        if self._is_closed or (condition is None and not self._conditions.troubles):
            return
        now, before = self._lifecycle.clock.now(), self._conditions.state
        if condition is None:
            if (ended := self._conditions.ends(source, now)) is not None:
                self._log_end(ended, now)
        elif (begun := self._conditions.begins(source, condition, now)) is not None:
            self._log_trouble(begun, now)
        self._arm()
        if self._conditions.state is not before:
            self._tell_state()
        if condition is not None:
            self._pressed.fire()

    @property
    def is_troubled(self) -> bool:
        """Whether the destination does not accept writes at present."""
        return bool(self._conditions.troubles)

    def retrying(self, batch: Batch[Any], kind: ErrorClass, items: int, delay: float) -> None:
        """Count a retry of a batch, and notify observers."""
        self.retries += 1
        self._observers.tell(lambda seen: seen.on_retry(batch, kind.value, items, delay))

    def heard(self, errors: Iterable[BaseException]) -> None:
        """Note the first error of a write, and its class."""
        error = next(iter(errors), None)
        if error is None or isinstance(error, StoppedError):  # not an error of the destination
            return
        try:
            kind = classified(error, self._classify)
        except Exception:  # a classifier that raises lists nothing
            kind = ErrorClass.UNLISTED
        if kind is not ErrorClass.STOPPED:
            name, message = type(error).__name__, for_log(error)
            shown = ErrorStats(error_type=name, error_class=kind.value, message=message, age=0.0)
            self._last_error = (self._lifecycle.clock.now(), shown)

    def close(self) -> None:
        """Stop the reminders."""
        self._is_closed = True
        self._disarm()

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # -- state -------------------------------------------------------------------------------------

    def destination(self, now: float) -> DestinationStats:
        """The worst state of all destinations."""
        worst = self._conditions.worst
        if worst is None:
            return DestinationStats()
        found, seconds = worst.condition, max(0.0, now - worst.since)
        return DestinationStats(
            state=found.state.value, seconds=seconds, reason=found.reason, repair=found.repair
        )

    def last_error(self, now: float) -> ErrorStats | None:
        """The last error of any write."""
        if self._last_error is None:
            return None
        at, shown = self._last_error
        return replace(shown, age=max(0.0, now - at))

    def last_error_since(self, when: float) -> str:
        """Return type and text of the last error of any write since `when`; empty without one."""
        if self._last_error is None or self._last_error[0] < when:
            return ""
        return self._last_error[1].message

    def seconds(self, now: float) -> Mapping[DestinationState, float]:
        """Return the seconds in each state other than available since the batcher opened."""
        return self._conditions.seconds(now)

    # -- reporting ---------------------------------------------------------------------------------

    def _tell_state(self) -> None:
        worst = self._conditions.worst
        name, state = self._lifecycle.name, self._conditions.state.value
        reason = "" if worst is None else worst.condition.reason
        self._observers.tell(lambda observer: observer.on_destination(name, state, reason))

    def _arm(self) -> None:
        self._disarm()
        due = self._conditions.next_reminder
        if due is not None and not self._is_closed:
            self._timer = self._lifecycle.clock.call_at(due, self._remind)

    def _remind(self) -> None:
        self._timer = None
        now = self._lifecycle.clock.now()
        for trouble in self._conditions.remind(now):
            self._log_trouble(trouble, now)
        self._arm()

    def _log_trouble(self, trouble: Trouble, now: float) -> None:
        condition, seconds = trouble.condition, now - trouble.since
        wall_time = self._lifecycle.clock.wall_time() - seconds
        began = datetime.fromtimestamp(wall_time, UTC).isoformat(timespec="seconds")
        repair = condition.repair if condition.repair not in condition.reason else ""
        log_safely(
            logger,
            logging.ERROR if condition.state is DestinationState.REFUSED else logging.WARNING,
            "batcher %r: %s since %s (%.0f s): %s%s; %d items and %d producers wait",
            self._lifecycle.name,
            _BEGINS[condition.state],
            began,
            seconds,
            condition.reason,
            f"; to repair: {repair}" if repair else "",
            self._ledger.inside,
            len(self._producers),
        )

    def _log_end(self, trouble: Trouble, now: float) -> None:
        log_safely(
            logger,
            logging.INFO,
            "batcher %r: the destination is available again after %.1f s (%s); %d items wait",
            self._lifecycle.name,
            now - trouble.since,
            trouble.condition.state.value,
            self._ledger.inside,
        )


@dataclass(slots=True)
class Trouble:
    """A destination that is not available."""

    condition: Condition
    since: float
    """The time at which it became unavailable."""
    due: float
    """The time of the next line about it."""
    is_quiet: bool = False
    """Whether its beginning was not logged."""

    def update(self, condition: Condition) -> None:
        """Note a newer reason for the same state."""
        self.condition = condition

    def logged(self, now: float) -> None:
        """Note that a line about it was logged."""
        self.due, self.is_quiet = now + EVERY, False


class Conditions:
    """The troubles of one batcher's destinations, by the decorator that reports them."""

    def __init__(self) -> None:
        self.troubles: dict[Hashable, Trouble] = {}
        self._told: dict[DestinationState, float] = {}
        self._ended: dict[DestinationState, float] = {}
        self._worst_since = NEVER
        self._seconds: dict[DestinationState, float] = {}

    @property
    def worst(self) -> Trouble | None:
        """The problem of the worst state."""
        troubles = self.troubles.values()
        return max(troubles, key=lambda each: SEVERITY[each.condition.state], default=None)

    @property
    def state(self) -> DestinationState:
        """The worst state of all destinations."""
        worst = self.worst
        return DestinationState.AVAILABLE if worst is None else worst.condition.state

    def begins(self, source: Hashable, condition: Condition, now: float) -> Trouble | None:
        """Note that a destination is not available; return the problem if a log line is due."""
        self._count(now)
        known = self.troubles.get(source)
        if known is not None and known.condition.state is condition.state:
            known.update(condition)
            return None
        state = condition.state
        told, ended = self._told.get(state, NEVER), self._ended.get(state, NEVER)
        is_throttle = state is DestinationState.THROTTLED
        was_told = known is not None and not known.is_quiet
        is_quiet = not was_told and now < (told + EVERY if is_throttle else ended + FLAP)
        due = told + EVERY if is_throttle else min(now + FLAP, told + EVERY)
        since = now if known is None else known.since
        trouble = Trouble(condition, since, due if is_quiet else now + EVERY, is_quiet)
        self.troubles[source] = trouble
        if is_quiet:
            return None
        self._told[state] = now
        return trouble

    def ends(self, source: Hashable, now: float) -> Trouble | None:
        """Note that a destination is available; return its problem if a log line is due."""
        self._count(now)
        known = self.troubles.pop(source, None)
        if known is None:
            return None
        self._ended[known.condition.state] = now
        return None if known.is_quiet else known

    @property
    def next_reminder(self) -> float | None:
        """The time of the next line about a lasting problem; `None` without any."""
        return min((trouble.due for trouble in self.troubles.values()), default=None)

    def remind(self, now: float) -> list[Trouble]:
        """Return the lasting troubles to log now."""
        due = [trouble for trouble in self.troubles.values() if now >= trouble.due]
        for trouble in due:
            trouble.logged(now)
            self._told[trouble.condition.state] = now
        return due

    def seconds(self, now: float) -> Mapping[DestinationState, float]:
        """Return the total seconds in each worst state other than available."""
        self._count(now)
        return dict(self._seconds)

    def _count(self, now: float) -> None:
        if self.troubles:
            self._seconds[self.state] = self._seconds.get(self.state, 0.0) + now - self._worst_since
        self._worst_since = now
