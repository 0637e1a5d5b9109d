"""How many workers, and how large a batch: decided here from what writes have shown. Pure: no
clock, no task, no I/O.

1. The limits are ceilings and hold always. What is decided lies between the floors of `Adaptive`
   and the limits.
2. A try is what counts, not a series of them: time spent backing off says nothing about the
   destination.
3. Only three kinds of errors speak of load: a timeout, a throttle, and an answer that it was too
   much in one write, which says nothing about the workers. Any other error freezes the decision
   that it falls into, for nobody knows what the write would have shown.
4. A try after a pause says nothing about load either, unless it failed for it: an idle batcher
   learns nothing and unlearns nothing.
5. A try that began before the last step down tells of the setting before it, and is not held
   against the new one.

The two decisions are separate and stand in files of their own: `_adaptive_workers` and
`_adaptive_items`.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from ..._core import checks
from .items import ItemsControl
from .workers import WorkersControl

if TYPE_CHECKING:
    from ..limits import Limits


class Load(enum.IntEnum):
    """What the errors of one try say about load; of several, the highest counts."""

    FINE = 0
    """There were none."""
    SILENT = 1
    """Nothing."""
    TOO_LARGE = 2
    """Too much in one write."""
    TOO_MUCH = 3
    """A timeout or a throttle."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Adaptive:
    """Let a batcher find its own concurrency and batch size below its limits, from what writes
    show.

    Concurrency goes up by one for each round trip that was no slower than those before, down by a
    tenth when round trips become slower or the destination objects, and to half when they are half
    as long again as at best. The batch size halves when the destination objects (a timeout, a
    throttle, an answer that it was too much), and grows back by a quarter. Raises `ConfigError` for
    a value out of range.
    """

    min_items: int = 10
    """The least batch size; where `Limits.max_items` is less, that is."""
    start_items: int | None = None
    """The batch size to begin with; default `Limits.max_items`."""
    min_workers: int = 1
    """The least number of workers."""
    start_workers: int | None = None
    """The number of workers to begin with; default `min_workers`."""

    def __post_init__(self) -> None:
        checks.count("min_items", self.min_items)
        checks.count("min_workers", self.min_workers)
        checks.optional_count("start_items", self.start_items)
        checks.optional_count("start_workers", self.start_workers)
        if self.start_workers is not None and self.start_workers < self.min_workers:
            raise checks.bad(
                "start_workers",
                self.start_workers,
                f"must be at least min_workers={self.min_workers}",
            )
        if self.start_items is not None and self.start_items < self.min_items:
            raise checks.bad(
                "start_items", self.start_items, f"must be at least min_items={self.min_items}"
            )

    def check_against(self, limits: Limits) -> None:
        """Raise `ConfigError` for what lies above the limits. `min_items` may, since its default
        must fit all.
        """
        for name, value, most in (
            ("start_items", self.start_items, limits.max_items),
            ("min_workers", self.min_workers, limits.workers),
            ("start_workers", self.start_workers, limits.workers),
        ):
            if value is not None and value > most:
                raise checks.bad(
                    name,
                    value,
                    f"must not be above the limit, which is {most}: Limits are the ceiling of "
                    "what adapts",
                )


class Setting(NamedTuple):
    """What is in force."""

    workers: int
    max_items: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Try:
    """One try of a write that has ended. Times are the clock's seconds."""

    ended: float
    seconds: float
    items: int
    load: Load = Load.FINE
    in_flight: int = 1
    """How many writes were under way when it ended, itself included."""
    idle: bool = False
    """Whether it came after a pause: nothing had been under way for at least as long as it took."""
    sizes: bool = True
    """Whether its number of items says something about the batch size."""


class AdaptiveControl:
    """Hears of each try, answers with the setting that is right from now on."""

    def __init__(self, rules: Adaptive, limits: Limits, *, patience: float) -> None:
        least = min(rules.min_items, limits.max_items)
        start = limits.max_items if rules.start_items is None else rules.start_items
        self._items = ItemsControl(
            start=start, least=least, most=limits.max_items, patience=patience
        )
        self._workers = WorkersControl(
            start=rules.start_workers or rules.min_workers,
            least=rules.min_workers,
            most=limits.workers,
        )

    @property
    def setting(self) -> Setting:
        """What is in force."""
        return Setting(self._workers.now, self._items.now)

    def heard(self, one: Try) -> Setting:
        """A try has ended; return what is right from now on."""
        if one.idle and one.load < Load.TOO_LARGE:
            return self.setting
        began = one.ended - one.seconds
        fine, too_much, too_large = (
            one.load is load for load in (Load.FINE, Load.TOO_MUCH, Load.TOO_LARGE)
        )
        if one.sizes or not fine:
            self._items.heard(
                one.ended, began, one.items, fine=fine, too_much=too_much, too_large=too_large
            )
        self._workers.heard(
            one.ended, began, one.items, one.in_flight, fine=fine, too_much=too_much
        )
        return self.setting
