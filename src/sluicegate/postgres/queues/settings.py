"""The settings of a queue. Pure."""

from __future__ import annotations

from dataclasses import dataclass, fields
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypedDict, cast

from ..._core import checks
from ..._core.checks import bad
from .ring import SLOT_FUNCTIONS, SlotFunction

if TYPE_CHECKING:
    from collections.abc import Iterator

Poison: TypeAlias = Literal["skip", "block", "block_and_dead_letter", "park_key"]

POISONS: tuple[Poison, ...] = ("skip", "block", "block_and_dead_letter", "park_key")
MOST = 2**31 - 1
FIXED = ("slot_function", "ordering_required", "sticky")
"""Settings that can only be changed while a queue is empty, since they determine jobs and lanes."""
_UNORDERED = (
    "must not be given with ordering_required=True, since later jobs would pass a job that cannot "
    'be handled; use "block" or "block_and_dead_letter"'
)


class QueueChanges(TypedDict, total=False):
    """Settings to change; the others stay."""

    slot_function: SlotFunction
    ordering_required: bool
    sticky: bool
    poison: Poison | None
    max_attempts: int
    max_depth: int | None
    max_in_flight: int | None
    key_rate: float | None
    keep_done: timedelta | float | None
    keep_dead: timedelta | float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueSettings:
    """The order of a queue's jobs, its limits, and its strategy for jobs that cannot be handled.

    Raises `ConfigError` for contradictory settings.
    """

    slot_function: SlotFunction = "sha256"
    """The hash function from a key to one of 65,536 slots. Jobs inserted by SQL need `"sha256"`."""
    ordering_required: bool = False
    """Whether all jobs are in one lane, in strict order, with one consumer at a time."""
    sticky: bool = False
    """Whether keys are assigned to the consumer that owns their slots."""
    poison: Poison | None = None
    """The strategy for a job that cannot be handled; default `"park_key"`, or `"block"` with
    `ordering_required`.
    """
    max_attempts: int = 5
    max_depth: int | None = None
    """Maximum number of jobs in the queue; an enqueue beyond it fails."""
    max_in_flight: int | None = None
    """Maximum number of concurrent leases."""
    key_rate: float | None = None
    """Maximum number of jobs of a key that start per second."""
    keep_done: timedelta | None = None
    """Retention of handled jobs; seconds become a `timedelta`; default: they are not kept."""
    keep_dead: timedelta | None = None
    """Retention of dead letters; default: until they are purged."""

    def __post_init__(self) -> None:
        checks.choice("slot_function", self.slot_function, SLOT_FUNCTIONS)
        for name in ("ordering_required", "sticky"):
            checks.flag(name, getattr(self, name))
        self._settle("poison", self._checked_poison())
        _whole("max_attempts", checks.count("max_attempts", self.max_attempts))
        checks.optional_count("max_depth", self.max_depth)
        if self.max_in_flight is not None:
            _whole("max_in_flight", checks.count("max_in_flight", self.max_in_flight))
        self._settle("key_rate", checks.optional_rate("key_rate", self.key_rate))
        for name in ("keep_done", "keep_dead"):
            self._settle(name, interval(name, getattr(self, name)))

    def _checked_poison(self) -> Poison:
        if self.poison is None:
            return "block" if self.ordering_required else "park_key"
        poison = checks.choice("poison", self.poison, POISONS)
        if self.ordering_required and poison in {"skip", "park_key"}:
            raise bad("poison", poison, _UNORDERED)
        return poison

    def _settle(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)


COLUMNS = tuple(field.name for field in fields(QueueSettings))
"""The names of the settings, which are columns of the table of queues."""


def columns_of(settings: QueueSettings) -> tuple[object, ...]:
    """Return the values of the columns, in the order of `COLUMNS`."""
    return tuple(getattr(settings, name) for name in COLUMNS)


def with_changes(settings: QueueSettings, changes: QueueChanges) -> QueueSettings:
    """Return the settings with these changes, checked together. Raises `ConfigError`."""
    for name in changes:
        if name not in COLUMNS:
            raise bad("settings", name, f"must be among {', '.join(COLUMNS)}")
    now: dict[str, Any] = dict(zip(COLUMNS, columns_of(settings), strict=True))
    now.update(cast("dict[str, Any]", changes))
    return QueueSettings(**now)


def differences(ours: QueueSettings, theirs: QueueSettings) -> Iterator[tuple[str, object, object]]:
    """Return the names of the settings that differ, with both values."""
    pairs = zip(COLUMNS, columns_of(ours), columns_of(theirs), strict=True)
    return (each for each in pairs if each[1] != each[2])


def interval(name: str, value: object) -> timedelta | None:
    """Convert seconds or a `timedelta` to a `timedelta`. Raises `ConfigError`."""
    found = checks.optional_seconds(name, value, usual=checks.LONG_PERIOD)
    return None if found is None else timedelta(seconds=found)


def _whole(name: str, value: int) -> None:
    if value > MOST:
        raise bad(name, value, f"must be at most {MOST}")
