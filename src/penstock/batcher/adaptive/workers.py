"""How many workers: one more, a tenth less or half, decided once in a round trip. Pure.

1. A decision is due when the mean round trip has passed since the last one. It looks at the tries
   that have ended in between.
2. Did one time out or was it throttled: a tenth less, at least by one. That number is not tried
   again at once.
3. Did half of them or more fail in a way that says nothing about load: no change. Where it is
   fewer, the others tell: bad rows that trickle in would hold up everything otherwise, the more so
   the more workers there are.
4. Has their mean become half as long again as it was at best since the last halving, and is that
   more than they vary: half. The best is then found anew, so if it was not this load that made them
   slow, the workers grow again from there. Without this rule they would creep up on a destination
   that slows down gently, and without the second condition one whose round trips differ by much
   would be left idle.
5. Were they slower than those before by more than 2.5 standard deviations (at least by a tenth): a
   tenth less.
6. Were they no slower than those before, and were all workers busy: one more. A number that was not
   reached is no evidence.
7. Like is compared with like: a large batch takes longer than a small one, so each doubling of the
   size has round trips of its own.
8. Only writes that succeeded tell a round trip. What they told before is forgotten by and by: a new
   mean counts 0.4.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .ceiling import Ceiling

if TYPE_CHECKING:
    from collections.abc import Iterable

LESS = 0.9
"""What is left of the workers after a step down."""
WEIGHT = 0.4
"""How much the newest mean counts."""
DEVIATIONS = 2.5
"""How many standard deviations make a round trip slow."""
LEAST_EXCESS = 0.1
"""How much slower it must be in any case, as a share: a destination that hardly varies has next to
no deviation.
"""
TOO_SLOW = 1.5
"""How many times the fastest round trip is too slow."""
LEFT = 0.5
"""What is left of the workers then."""
LEAST_SECONDS = 0.001
"""What is faster than this counts as this: such differences are the loop's, not the
destination's.
"""
NO_SLOWER = 1 + 1e-9
"""Equal means differ in their last digit."""


@dataclass(slots=True)
class Past:
    """Round trips so far: a mean and a variance that forget, and the lowest that the mean has
    been.
    """

    mean: float
    fastest: float
    variance: float = 0.0

    def add(self, value: float) -> None:
        """A newer value."""
        difference = value - self.mean
        step = WEIGHT * difference
        self.mean += step
        self.variance = (1 - WEIGHT) * (self.variance + difference * step)
        self.fastest = min(self.fastest, self.mean)

    @property
    def slow(self) -> float:
        """What is slow."""
        return self.mean + max(self._variation, LEAST_EXCESS * self.mean)

    @property
    def too_slow(self) -> float:
        """What is too slow for the mean."""
        return self.fastest + max(self._variation, (TOO_SLOW - 1) * self.fastest)

    @property
    def _variation(self) -> float:
        return DEVIATIONS * math.sqrt(self.variance)


@dataclass(slots=True)
class Recent:
    """Round trips since the last decision."""

    count: int = 0
    seconds: float = 0.0

    @property
    def mean(self) -> float:
        """Their mean."""
        return self.seconds / self.count


class WorkersControl:
    """The number of workers and the tries since it was decided last."""

    def __init__(self, *, start: int, least: int, most: int) -> None:
        self.now = start
        """The number in force."""
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
        """A try has ended; decide if it is time. One that began before the last step down tells of
        the number before.
        """
        if began < self._since:
            return
        self._too_much |= too_much
        self._silent += not fine and not too_much
        self._reached |= in_flight >= self.now
        if fine:
            recent = self._recent.setdefault(items.bit_length(), Recent())
            recent.count += 1
            recent.seconds += ended - began
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
                past.fastest = math.inf
        elif _ratio((recent, recent.mean, past.slow) for past, recent in known) > NO_SLOWER:
            self._shrink(LESS)
        elif (
            self._reached
            and _ratio((recent, recent.mean, past.mean) for past, recent in known) <= NO_SLOWER
        ):
            self.now = max(self.now, min(self._ceiling.now, self.now + 1))

    @property
    def _fine(self) -> int:
        return sum(recent.count for recent in self._recent.values())

    def _shrink(self, share: float) -> None:
        self.now = max(self._least, int(self.now * share))

    def _known(self) -> list[tuple[Past, Recent]]:
        return [
            (self._past[size], recent)
            for size, recent in self._recent.items()
            if size in self._past
        ]

    def _learn(self) -> None:
        """Take in the round trips since the last decision; the next one has as long as their mean,
        or as those before where there were none.
        """
        for size, recent in self._recent.items():
            if size in self._past:
                self._past[size].add(recent.mean)
            else:
                self._past[size] = Past(recent.mean, recent.mean)
        if self._fine:
            self._trip = sum(recent.seconds for recent in self._recent.values()) / self._fine


def _ratio(compared: Iterable[tuple[Recent, float, float]]) -> float:
    """How many times as long as the others the first seconds are; a mean over the recent tries."""
    known = [
        (recent.count, max(seconds, LEAST_SECONDS) / max(other, LEAST_SECONDS))
        for recent, seconds, other in compared
    ]
    return sum(count * times for count, times in known) / sum(count for count, _ in known)
