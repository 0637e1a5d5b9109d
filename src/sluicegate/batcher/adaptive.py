"""The number of workers and the batch size, from the results of writes. No clock, task or I/O.

1. Decisions lie between the floors of `Adaptive` and the limits, which always hold.
2. Each attempt counts separately: backoff time is not a property of the destination.
3. Three kinds of errors signal load: a timeout, a throttle, and a write refused as too large, which
   is no evidence about the workers. Any other error suspends the decision in progress, since the
   write is no evidence.
4. An attempt after a pause counts only if it failed because of load: the setting of an idle batcher
   does not change.
5. An attempt that began before the last step down belongs to the earlier setting, and does not
   count.

The two decisions are independent. Each has a temporary *ceiling* below a value that the destination
has objected to:

1. Growth stops just below the last objection for a number of decisions (the hold). Then the whole
   range is open again: only an attempt shows whether the destination has changed.
2. An objection soon after a hold doubles the next hold, up to `LONGEST`. An objection during a hold
   lowers the ceiling and does not lengthen the hold, so that a recovered destination is probed.

The batch size is decided after every ten attempts:

| the last ten attempts | the size |
|---|---|
| one timed out, was throttled or too large | halves, at least the floor |
| one failed without signalling load | stays |
| more than nine tenths full, in less than half the patience | a quarter more, at most the ceiling |
| less than three tenths full | a quarter less, at least the floor |
| otherwise | stays |

Every step is at least 1, so that a size below 4 can grow. A size refused as too large sets a
ceiling; a timeout or a throttle may have other causes.

The number of workers is decided once per round trip: a decision is due one mean round trip after
the last one. The first rule that applies to the attempts that ended in between decides:

1. An attempt timed out or was throttled: a tenth less, at least by one, and a ceiling at that
   number.
2. At least half failed without signalling load: no change. If fewer failed, the others decide;
   otherwise a few bad rows would stop all growth, especially with many workers.
3. The mean exceeds its best since the last halving by half of that, and by more than it varies:
   half, and a ceiling at the number with the best throughput since the last halving (at least three
   quarters), unless round trips vary too much to tell. The best is then measured again, so that the
   workers grow again if load was not the cause. Without this rule they would overload a destination
   that slows down gradually; without its second condition, they would stay idle with a destination
   of very uneven round trips; without the ceiling, they would soon be too many again.
4. Round trips were slower than the earlier ones by more than 2.5 standard deviations (at least by a
   tenth): a tenth less.
5. Round trips were no slower than the earlier ones, and all workers were busy: one more. A number
   that was not reached is no evidence.

Round trips are compared per size class (a doubling of the size), since a large batch takes longer
than a small one. Only successful writes measure a round trip. A new mean weighs 0.4.
"""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from .._core import checks
from .._core.keywords import known_arguments

if TYPE_CHECKING:
    from collections.abc import Iterable

    from .limits import Limits

HOLD = 20
"""Decisions in the first hold of a ceiling, and after a hold in which an objection is soon."""
LONGEST = 640
"""Decisions in the longest hold."""

TRIES = 10
"""Attempts per decision about the batch size."""
FULL = 0.9
"""Share of its size above which a batch is full."""
SPARSE = 0.3
"""Share of its size below which a batch is sparse."""

LESS = 0.9
"""Share of the workers left after a step down."""
WEIGHT = 0.4
"""Weight of the newest mean of round trips."""
DEVIATIONS = 2.5
"""Standard deviations above the mean at which a round trip is slow."""
LEAST_EXCESS = 0.1
"""The minimum share by which it must be slower, since steady destinations hardly deviate."""
TOO_SLOW = 1.5
"""Multiple of the best mean at which the workers are halved."""
LEFT = 0.5
"""Share of the workers left in that case."""
AS_GOOD = 0.95
"""Share of the best throughput at which a number of workers is as good as the best."""
KEPT = 0.75
"""The lowest ceiling in that case, as a share of the workers."""
LEAST_SECONDS = 0.001
"""Minimum of a round trip: smaller differences come from the loop."""
NO_SLOWER = 1 + 1e-9
"""Factor within which two means are equal: they may differ in the last digit."""


class Load(enum.IntEnum):
    """The load signalled by the errors of an attempt; the highest of several counts."""

    FINE = 0
    """No error."""
    SILENT = 1
    """Errors without information about load."""
    TOO_LARGE = 2
    """A write refused as too large."""
    TOO_MUCH = 3
    """A timeout or a throttle."""


@known_arguments()
@dataclass(frozen=True, slots=True, kw_only=True)
class Adaptive:
    """Adaptation of a batcher's concurrency and batch size to the results of its writes.

    Both stay within the limits. Concurrency rises by one for each round trip that is no slower than
    the earlier ones, falls by a tenth if round trips become slower or a write is throttled or times
    out, and halves if they take 1.5 times as long as the fastest ones. The batch size halves after
    a timeout, a throttle or a refusal as too large, and grows back by a quarter. Raises
    `ConfigError` for a value out of range.
    """

    min_items: int = 10
    """The smallest batch size, or `Limits.max_items` if that is less."""
    start_items: int | None = None
    """The initial batch size; default `Limits.max_items`."""
    min_workers: int = 1
    """The smallest number of workers."""
    start_workers: int | None = None
    """The initial number of workers; default `min_workers`."""

    def __post_init__(self) -> None:
        checks.count("min_items", self.min_items)
        checks.count("min_workers", self.min_workers)
        checks.optional_count("start_items", self.start_items)
        checks.optional_count("start_workers", self.start_workers)
        for kind, start, least in (
            ("workers", self.start_workers, self.min_workers),
            ("items", self.start_items, self.min_items),
        ):
            if start is not None and start < least:
                raise checks.bad(f"start_{kind}", start, f"must be at least min_{kind}={least}")

    def check_against(self, limits: Limits) -> None:
        """Raise `ConfigError` for a value above its limit; `min_items` is capped instead."""
        for name, value, most in (
            ("start_items", self.start_items, limits.max_items),
            ("min_workers", self.min_workers, limits.workers),
            ("start_workers", self.start_workers, limits.workers),
        ):
            if value is not None and value > most:
                rule = "must not be above the limit, which is"
                raise checks.bad(name, value, f"{rule} {most}: adaptive values stay below Limits")


class Setting(NamedTuple):
    """A number of workers and a batch size."""

    workers: int
    max_items: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Try:
    """An ended attempt of a write. Times are in seconds of the clock."""

    ended: float
    seconds: float
    items: int
    load: Load = Load.FINE
    in_flight: int = 1
    """Number of writes that were running when it ended, including itself."""
    idle: bool = False
    """Whether it followed a pause at least as long as itself, in which no write was running."""
    sizes: bool = True
    """Whether it counts for the batch size."""


class AdaptiveControl:
    """Derives the setting from the results of attempts."""

    def __init__(self, rules: Adaptive, limits: Limits, *, patience: float) -> None:
        most = limits.max_items
        least = min(rules.min_items, most)
        start = most if rules.start_items is None else rules.start_items
        self._items = ItemsControl(start=start, least=least, most=most, patience=patience)
        least = rules.min_workers
        start = rules.start_workers or least
        self._workers = WorkersControl(start=start, least=least, most=limits.workers)

    @property
    def setting(self) -> Setting:
        """The setting in force."""
        return Setting(self._workers.now, self._items.now)

    def heard(self, one: Try) -> Setting:
        """Evaluate an ended attempt; return the setting from now on."""
        if one.idle and one.load < Load.TOO_LARGE:
            return self.setting
        ended, began, items, load = one.ended, one.ended - one.seconds, one.items, one.load
        fine, much, large = load is Load.FINE, load is Load.TOO_MUCH, load is Load.TOO_LARGE
        if one.sizes or not fine:
            self._items.heard(ended, began, items, fine=fine, too_much=much, too_large=large)
        self._workers.heard(ended, began, items, one.in_flight, fine=fine, too_much=much)
        return self.setting


class Ceiling:
    """The highest value that growth may currently reach."""

    def __init__(self, most: int) -> None:
        self.now = most  # the ceiling in force
        self._most = most
        self._hold = HOLD
        self._left = -HOLD

    def objected(self, at: int) -> None:
        """Start a hold below this value, to which the destination objected."""
        self.now = max(1, at - 1)
        if self._left <= 0:
            soon = self._left > -HOLD
            self._hold = min(LONGEST, 2 * self._hold) if soon else HOLD
        self._left = self._hold

    def passes(self) -> None:
        """Count a decision."""
        self._left -= 1
        if self._left <= 0:
            self.now = self._most


class ItemsControl:
    """The batch size, and the attempts since its last decision."""

    def __init__(self, *, start: int, least: int, most: int, patience: float) -> None:
        self.now = start  # the size in force
        self._least = least
        self._ceiling = Ceiling(most)
        self._patience = patience
        self._since = -float("inf")
        self._restart()

    def _restart(self) -> None:
        self._tries = self._items = 0
        self._seconds = 0.0
        self._too_much = self._too_large = self._silent = False

    def heard(
        self, ended: float, began: float, items: int, *, fine: bool, too_much: bool, too_large: bool
    ) -> None:
        """Count an ended attempt, and decide at the tenth."""
        if began < self._since:  # with the size before the last halving
            return
        self._tries += 1
        self._items += items
        self._seconds += ended - began
        self._too_much |= too_much or too_large
        self._too_large |= too_large
        self._silent |= not (fine or too_much or too_large)
        if self._tries >= TRIES:
            self._decide(ended)
            self._restart()

    def _decide(self, now: float) -> None:
        average = self._items / self._tries
        self._ceiling.passes()
        if self._too_much:
            self._since = now
            if self._too_large:
                self._ceiling.objected(self.now)
            self.now = max(self._least, self.now // 2)
        elif self._silent:
            return
        elif average > FULL * self.now and self._seconds / self._tries < self._patience / 2:
            self.now = max(self.now, min(self._ceiling.now, self.now + self._step))
        elif average < SPARSE * self.now:
            self.now = max(self._least, self.now - self._step)

    @property
    def _step(self) -> int:
        return max(1, self.now // 4)


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
        """Measure the fastest round trip again."""
        self.fastest = math.inf

    @property
    def is_steady(self) -> bool:
        """Whether round trips vary so little that the throughputs of two numbers can be compared."""
        return self._variation < (TOO_SLOW - 1) * self.mean

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
        self._rates: dict[int, float] = {}
        """The throughput with each number of workers since the last halving, as workers per second
        of a round trip.
        """
        self._since = -math.inf
        self._due = -math.inf
        self._trip = 0.0
        self._workers = start
        """The number at which the recent attempts were made."""
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
            before = self._workers = self.now
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
            if self._rates and all(past.is_steady for past, _ in known):
                least = AS_GOOD * max(self._rates.values())
                best = max([workers for workers, rate in self._rates.items() if rate >= least])
                self._ceiling.objected(max(best, int(KEPT * self.now)) + 1)
            self._rates.clear()
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
            if self._reached:
                rate = self._workers / max(self._trip, LEAST_SECONDS)
                before = self._rates.get(self._workers, rate)
                self._rates[self._workers] = before + WEIGHT * (rate - before)


def _ratio(compared: Iterable[tuple[Recent, float, float]]) -> float:
    """The mean ratio of the first seconds to the second, weighted by recent tries."""
    least = LEAST_SECONDS
    known = [(each.count, max(own, least) / max(past, least)) for each, own, past in compared]
    return sum(count * times for count, times in known) / sum(count for count, _ in known)
