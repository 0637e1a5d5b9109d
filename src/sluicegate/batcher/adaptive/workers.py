"""The number of workers: decided once per round trip. Pure.

A decision is due one mean round trip after the last one. The first rule that applies to the
attempts that ended in between decides:

1. An attempt timed out or was throttled: a tenth less, at least by one, and a ceiling at that
   number.
2. At least half failed without signalling load: no change. If fewer failed, the others decide;
   otherwise a few bad rows would stop all growth, especially with many workers.
3. The mean exceeds its best since the last halving by half of that, and by more than it varies:
   half. The best is then measured anew, so that the workers grow again if load was not the cause.
   Without this rule they would overload a destination that slows down gradually; without its second
   condition, they would stay idle with a destination of very uneven round trips.
4. Round trips were slower than the earlier ones by more than 2.5 standard deviations (at least by a
   tenth): a tenth less.
5. Round trips were no slower than the earlier ones, and all workers were busy: one more. A number
   that was not reached is no evidence.

Round trips are compared per size class (a doubling of the size), since a large batch takes longer
than a small one. Only successful writes measure a round trip. A new mean weighs 0.4.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .ceiling import Ceiling

if TYPE_CHECKING:
    from collections.abc import Iterable

LESS = 0.9  # the share of workers left after a step down
WEIGHT = 0.4  # the weight of the newest mean
DEVIATIONS = 2.5  # standard deviations above the mean at which a round trip is slow
LEAST_EXCESS = 0.1
"""The minimum share by which it must be slower, since steady destinations hardly deviate."""
TOO_SLOW = 1.5  # the multiple of the fastest round trip that is too slow
LEFT = 0.5  # the share of workers left in that case
LEAST_SECONDS = 0.001  # minimum of a round trip: smaller differences come from the loop
NO_SLOWER = 1 + 1e-9  # equal means may differ in the last digit


@dataclass(slots=True)
class Past:
    """Earlier round trips: their fading mean and variance, and the lowest value of the mean."""

    mean: float
    fastest: float
    variance: float = 0.0

    def add(self, value: float) -> None:
        """Add a newer value."""
        difference = value - self.mean
        step = WEIGHT * difference
        self.mean += step
        self.variance = (1 - WEIGHT) * (self.variance + difference * step)
        self.fastest = min(self.fastest, self.mean)

    @property
    def slow(self) -> float:
        """Seconds above which a round trip is slow."""
        return self.mean + max(self._variation, LEAST_EXCESS * self.mean)

    @property
    def too_slow(self) -> float:
        """Seconds above which the mean is too slow."""
        return self.fastest + max(self._variation, (TOO_SLOW - 1) * self.fastest)

    def forget_fastest(self) -> None:
        """Measure the fastest round trip anew."""
        self.fastest = math.inf

    @property
    def _variation(self) -> float:
        return DEVIATIONS * math.sqrt(self.variance)


@dataclass(slots=True)
class Recent:
    """Round trips since the last decision."""

    count: int = 0
    seconds: float = 0.0

    def add(self, seconds: float) -> None:
        """Add a round trip."""
        self.count += 1
        self.seconds += seconds

    @property
    def mean(self) -> float:
        """The mean of the round trips."""
        return self.seconds / self.count


class WorkersControl:
    """The number of workers, and the attempts since its last decision."""

    def __init__(self, *, start: int, least: int, most: int) -> None:
        self.now = start  # the number in force
        self._least = least
        self._ceiling = Ceiling(most)
        self._past: dict[int, Past] = {}
        self._since = -math.inf
        self._due = -math.inf
        self._trip = 0.0
        self._restart()

    def _restart(self) -> None:
        self._recent: dict[int, Recent] = {}
        self._too_much = False
        self._silent = 0
        self._reached = False

    def heard(
        self, ended: float, began: float, items: int, in_flight: int, *, fine: bool, too_much: bool
    ) -> None:
        """Count an ended attempt; decide if a decision is due."""
        if began < self._since:  # with the number before the last step down
            return
        self._too_much |= too_much
        self._silent += not fine and not too_much
        self._reached |= in_flight >= self.now
        if fine:
            self._recent.setdefault(items.bit_length(), Recent()).add(ended - began)
        if ended >= self._due:
            before = self.now
            self._decide()
            if self.now < before:
                self._since = ended
            self._learn()
            self._due = ended + self._trip
            self._restart()

    def _decide(self) -> None:
        self._ceiling.passes()
        if self._too_much:
            self._ceiling.objected(self.now)
            self._shrink(LESS)
        elif self._silent >= self._fine or not (known := self._known()):
            return
        elif _ratio((recent, past.mean, past.too_slow) for past, recent in known) > NO_SLOWER:
            self._shrink(LEFT)
            for past, _ in known:
                past.forget_fastest()
        elif _ratio((recent, recent.mean, past.slow) for past, recent in known) > NO_SLOWER:
            self._shrink(LESS)
        elif not self._reached:
            return
        elif _ratio((recent, recent.mean, past.mean) for past, recent in known) <= NO_SLOWER:
            self.now = max(self.now, min(self._ceiling.now, self.now + 1))

    @property
    def _fine(self) -> int:
        return sum(recent.count for recent in self._recent.values())

    def _shrink(self, share: float) -> None:
        self.now = max(self._least, int(self.now * share))

    def _known(self) -> list[tuple[Past, Recent]]:
        past = self._past
        return [(past[size], recent) for size, recent in self._recent.items() if size in past]

    def _learn(self) -> None:
        """Add the new round trips. The next decision is due after their mean, or the previous mean."""
        for size, recent in self._recent.items():
            if size in self._past:
                self._past[size].add(recent.mean)
            else:
                self._past[size] = Past(recent.mean, recent.mean)
        if self._fine:
            self._trip = sum(recent.seconds for recent in self._recent.values()) / self._fine


def _ratio(compared: Iterable[tuple[Recent, float, float]]) -> float:
    """The mean ratio of the first seconds to the second, weighted by recent tries."""
    least = LEAST_SECONDS
    known = [(each.count, max(own, least) / max(past, least)) for each, own, past in compared]
    return sum(count * times for count, times in known) / sum(count for count, _ in known)
