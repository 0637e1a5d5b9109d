"""Between the engine and what decides: when a try begins and ends, and what its errors say about
load.

A try is one stretch of a batch's write with a flush slot, from the slot to the backoff or to the
end. One that ends in a backoff without an error has only waited, for a rate limit say, and is not
told. Nor is one that a shutdown cuts off: a cancellation is nobody's objection. The others of a
batcher that stops are, since what it drains may need more workers than it had found.

Where items belong to tenants, a throttle is that tenant's own affair, as it is for a `Retry`: its
try is not told. Nor does a tenant's batch that was not full say anything about the size: with many
tenants most are not, while one of them sends full ones.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..._core.classify import classified
from ..._core.errors import (
    CircuitOpenError,
    ErrorClass,
    RefusedError,
    TimedOutError,
    TooLargeError,
    UnavailableError,
)
from ..._core.sink import walk
from .adaptive import AdaptiveControl, Load, Try

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ..._core.sink import Classifier
    from ..limits import Limits
    from .adaptive import Adaptive, Setting


@dataclass(slots=True)
class Running:
    """A try that is under way."""

    began: float
    pause: float
    """Seconds before it in which nothing was under way."""
    items: int
    of_tenant: bool
    """Whether its items belong to one of several tenants."""
    full: bool
    """Whether they are a full batch."""
    load: Load = Load.FINE
    only_theirs: bool = False
    """Whether the tenant was throttled."""


class Governor:
    """Watches the tries of one batcher, and has the setting."""

    def __init__(self, rules: Adaptive, limits: Limits, sink: object) -> None:
        self._control = AdaptiveControl(rules, limits, patience=_patience(limits, sink))
        self._classify: Classifier | None = getattr(sink, "classify", None)
        self._running = 0
        self._quiet_since = -math.inf

    @property
    def setting(self) -> Setting:
        """What is in force."""
        return self._control.setting

    def begins(
        self, items: int, now: float, *, of_tenant: bool = False, full: bool = True
    ) -> Running:
        """A batch has a flush slot."""
        pause = 0.0 if self._running else now - self._quiet_since
        self._running += 1
        return Running(now, pause, items, of_tenant, full)

    def heard(self, one: Running, errors: Iterable[BaseException]) -> None:
        """Errors of the running try, as often as they are passed on."""
        for error in {id(error): error for error in errors}.values():
            if one.of_tenant and classified(error, self._classify) is ErrorClass.THROTTLE:
                one.only_theirs = True
            else:
                one.load = max(one.load, load_of(error, self._classify))

    def ends(self, one: Running, now: float, *, rests: bool, told: bool) -> bool:
        """A try has ended, in a backoff if it `rests`; say whether the setting has changed. It is
        heard of only if `told`.
        """
        in_flight = self._running
        self._running -= 1
        if not self._running:
            self._quiet_since = now
        says_nothing = one.only_theirs and one.load < Load.TOO_LARGE
        if not told or says_nothing or (rests and one.load is Load.FINE):
            return False
        seconds = now - one.began
        before = self._control.setting
        ended = Try(
            ended=now,
            seconds=seconds,
            items=one.items,
            load=one.load,
            in_flight=in_flight,
            idle=one.pause > seconds,
            sizes=one.full or not one.of_tenant,
        )
        return self._control.heard(ended) != before


def load_of(error: BaseException, classify: Classifier | None = None) -> Load:
    """What one error says about load."""
    if classified(error, classify) is ErrorClass.THROTTLE:
        return Load.TOO_MUCH
    seen: set[int] = set()
    link: BaseException | None = error
    while link is not None and id(link) not in seen:
        if isinstance(link, TooLargeError):
            return Load.TOO_LARGE
        if isinstance(link, (TimedOutError, TimeoutError)) or _asks_for_time(link):
            return Load.TOO_MUCH
        seen.add(id(link))
        link = link.__cause__
    return Load.SILENT


def _asks_for_time(error: BaseException) -> bool:
    """Whether a server says when to come again, as one does that sheds load (HTTP 503 with
    `Retry-After`).
    """
    is_other = isinstance(error, (CircuitOpenError, RefusedError))
    return isinstance(error, UnavailableError) and not is_other and error.retry_after is not None


def _patience(limits: Limits, sink: object) -> float:
    """Seconds that a try may take: the shortest timeout around it."""
    stretches: list[float | None] = [getattr(part, "stretch_limit", None) for part in walk(sink)]
    return min([limits.stretch, *(seconds for seconds in stretches if seconds is not None)])
