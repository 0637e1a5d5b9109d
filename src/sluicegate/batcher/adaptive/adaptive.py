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

The two decisions are independent: see `workers.py` and `items.py`.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from ..._core import checks
from ..._core.keywords import known_arguments
from .items import ItemsControl
from .workers import WorkersControl

if TYPE_CHECKING:
    from ..limits import Limits


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
