"""The attempts of one batcher: their starts and ends, and the load that their errors signal.

An attempt is one stretch of a batch's write with a flush slot, from the slot to the backoff or the
end. Two kinds do not count: attempts that end in a backoff without an error (for example a rate
limit), and attempts that a shutdown cuts off. Other attempts of a stopping batcher count: draining
may need more workers.

With tenants, a throttle affects only its tenant, as in a `Retry`, and its attempt does not count. A
tenant's batch counts for the batch size only if it was full: with many tenants most are not.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .._core.batch import Reason
from .._core.classify import classified
from .._core.errors import (
    CircuitOpenError,
    ErrorClass,
    RefusedError,
    TimedOutError,
    TooLargeError,
    UnavailableError,
)
from .._core.sink import classifier_of, stretch_limits
from .adaptive import AdaptiveControl, Load, Try

if TYPE_CHECKING:
    from collections.abc import Iterable

    from .._core.classify import Classifier
    from .adaptive import Adaptive, Setting
    from .gathering.pack import Sealed
    from .limits import Limits

_FULL = frozenset({Reason.SIZE, Reason.BYTES})
"""Reasons of batches that were sealed because they were full."""


@dataclass(slots=True)
class Running:
    """A running attempt."""

    began: float
    pause: float  # seconds before it without a running attempt
    items: int
    of_tenant: bool  # whether its items belong to one of several tenants
    full: bool  # whether its batch was full
    load: Load = Load.FINE
    is_tenant_throttled: bool = False

    def heard(self, errors: Iterable[BaseException], classify: Classifier | None) -> None:
        """Evaluate errors, each object once."""
        for error in {id(error): error for error in errors}.values():
            if self.of_tenant and classified(error, classify) is ErrorClass.THROTTLE:
                self.is_tenant_throttled = True
            else:
                self.load = max(self.load, load_of(error, classify))

    def ended(self, now: float, in_flight: int) -> Try:
        """Return the attempt as ended."""
        lasted, sizes = now - self.began, self.full or not self.of_tenant
        return Try(
            ended=now, seconds=lasted, items=self.items, load=self.load, in_flight=in_flight,
            idle=self.pause > lasted, sizes=sizes,
        )  # fmt: skip


class Governor:
    """Measures the attempts of one batcher, and keeps the setting. Without rules it measures
    nothing.
    """

    def __init__(self, rules: Adaptive | None, limits: Limits, sink: object) -> None:
        self._control = (
            None
            if rules is None
            else AdaptiveControl(rules, limits, patience=_patience(limits, sink))
        )
        self._classify = classifier_of(sink)
        self._running = 0
        self._quiet_since = -math.inf

    @property
    def setting(self) -> Setting | None:
        """The setting in force; `None` without rules."""
        return None if self._control is None else self._control.setting

    def begins(self, items: int, sealed: Sealed[Any], now: float) -> Running | None:
        """Begin an attempt of a batch that has a flush slot; `None` without rules."""
        if self._control is None:
            return None
        pause = 0.0 if self._running else now - self._quiet_since
        self._running += 1
        return Running(now, pause, items, sealed.owner is not None, sealed.reason in _FULL)

    def heard(self, one: Running | None, errors: Iterable[BaseException]) -> None:
        """Evaluate errors of a running attempt."""
        if one is not None:
            one.heard(errors, self._classify)

    def ends(self, one: Running | None, now: float, *, rests: bool, told: bool) -> bool:
        """End an attempt (`rests`: in a backoff; `told`: counted); return whether the setting
        changed.
        """
        if self._control is None or one is None:
            return False
        in_flight = self._running
        self._running -= 1
        if not self._running:
            self._quiet_since = now
        says_nothing = one.is_tenant_throttled and one.load < Load.TOO_LARGE
        if not told or says_nothing or (rests and one.load is Load.FINE):
            return False
        before = self._control.setting
        return self._control.heard(one.ended(now, in_flight)) != before


def load_of(error: BaseException, classify: Classifier | None = None) -> Load:
    """Return the load that one error signals."""
    if classified(error, classify) is ErrorClass.THROTTLE:
        return Load.TOO_MUCH
    seen: set[int] = set()
    link: BaseException | None = error
    while link is not None and id(link) not in seen:
        if isinstance(link, TooLargeError):
            return Load.TOO_LARGE
        if isinstance(link, (TimedOutError, TimeoutError)) or _sheds_load(link):
            return Load.TOO_MUCH
        seen.add(id(link))
        link = link.__cause__
    return Load.SILENT


def _sheds_load(error: BaseException) -> bool:
    # an unavailable server with a delay, such as HTTP 503 with `Retry-After`
    is_other = isinstance(error, (CircuitOpenError, RefusedError))
    return isinstance(error, UnavailableError) and not is_other and error.retry_after is not None


def _patience(limits: Limits, sink: object) -> float:
    """Return the seconds that an attempt may take: its shortest timeout."""
    return min([limits.stretch, *stretch_limits(sink)])
