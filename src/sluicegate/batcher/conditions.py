"""The states of a batcher's destinations, and the times of their log lines. Pure.

1. Each decorator that knows a destination (a retry, a breaker) reports its state; a stack may have
   several.
2. A trouble (unavailable, refusing, throttling, or behind an open breaker) is logged once, then
   every `EVERY` seconds, and once more when it has ended.
3. A trouble that returns within `FLAP` seconds of its end is not logged again unless it lasts: a
   single refused item can cause many of them in a second. Throttling normally comes and goes, so it
   is logged again at the earliest `EVERY` seconds after its last line.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from .._core.delivery.host import SEVERITY, Condition, DestinationState

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping

EVERY = 60.0
"""Seconds between two lines about the same trouble."""
FLAP = 5.0
"""Seconds within which a returning trouble counts as the same one."""
NEVER = -float("inf")


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
        """The trouble of the worst state."""
        troubles = self.troubles.values()
        return max(troubles, key=lambda each: SEVERITY[each.condition.state], default=None)

    @property
    def state(self) -> DestinationState:
        """The worst state of all destinations."""
        worst = self.worst
        return DestinationState.AVAILABLE if worst is None else worst.condition.state

    def begins(self, source: Hashable, condition: Condition, now: float) -> Trouble | None:
        """Note that a destination is not available; return the trouble if a log line is due."""
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
        """Note that a destination is available; return its trouble if a log line is due."""
        self._count(now)
        known = self.troubles.pop(source, None)
        if known is None:
            return None
        self._ended[known.condition.state] = now
        return None if known.is_quiet else known

    @property
    def next_reminder(self) -> float | None:
        """The time of the next line about a lasting trouble; `None` without any."""
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
