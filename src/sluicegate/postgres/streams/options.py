"""The checked arguments of a source, and the start of a subscription."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Literal, get_args

from ..._core import checks
from ..._core.checks import bad
from ..._core.subscriptions import SLOTS, SubscriptionLocks, SubscriptionStart, SubscriptionState

if TYPE_CHECKING:
    from .log_reader import LogReader
    from .selection import SelectedLog


StreamStart = Literal["beginning", "next"]

CHECK_EVERY = 1.0
"""Seconds between checks of the subscription while this process has slots."""
LEFT_OUT = 100_000
"""Maximum number of messages that a start may skip by position."""
_RULE = 'must be "beginning", "next" or a datetime with a time zone'
_TOO_MANY = (
    f"more than {LEFT_OUT:,} messages from this time on are older than it, since the clock of the "
    'server was set back; start at another time, or at "beginning" or "next"'
)


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamOptions:
    """The messages to read, and how to read them."""

    subscription: str
    selection: SelectedLog
    start: StreamStartPoint
    poll: float
    hold: float
    slots_at_once: int
    ends: bool

    def __post_init__(self) -> None:
        if checks.count("slots_at_once", self.slots_at_once) > SLOTS:
            raise bad("slots_at_once", self.slots_at_once, f"must be at most {SLOTS}")

    @property
    def check_every(self) -> float:
        """Seconds between checks of the subscription while this process has slots."""
        return max(CHECK_EVERY, self.poll)


def check_providers(state: object, locks: object) -> None:
    """Raise `ConfigError` unless these are a state and locks, or `None`."""
    if not (state is None or isinstance(state, SubscriptionState)):
        raise bad("state", state, "must implement SubscriptionState")
    if not (locks is None or isinstance(locks, SubscriptionLocks)):
        raise bad("locks", locks, "must implement SubscriptionLocks")


@dataclass(frozen=True, slots=True)
class StreamStartPoint:
    """The start of a subscription: the beginning, the next message, or a time. It is fixed once, for all
    processes that serve the subscription.

    1. The horizon is read first, and the visible messages beyond it in a later statement. A message
       beyond the horizon that is visible then was appended before the start. Any other one becomes
       visible later, and is delivered.
    2. A start at a time begins at the first message of that time or later. Older messages after it,
       caused by a clock that jumped or by concurrent transactions, are skipped by their positions. All
       messages appended after the start are delivered, regardless of the clock.
    """

    kind: StreamStart | Literal["time"]
    time: datetime | None = None

    @classmethod
    def of(cls, start: object) -> StreamStartPoint:
        """Check the argument. Raises `ConfigError`."""
        if isinstance(start, datetime):
            if start.utcoffset() is None:
                raise bad("start", start, _RULE)
            return cls("time", start)
        for kind in get_args(StreamStart):
            if start == kind:
                return cls(kind)
        raise bad("start", start, _RULE)

    async def begin(self, log: LogReader, selection: str) -> SubscriptionStart:
        """Determine the start of a subscription now. Raises client errors, and `ConfigError`
        for a time with too many older messages after it.
        """
        first, earlier = 0, list[int]()
        if self.kind != "beginning":
            first = (await log.horizon()).position + 1
            if self.time is not None:
                at = await log.first_at(self.time)
                first = first if at is None else min(first, at)
            earlier = await log.visible(first, self.time, LEFT_OUT + 1)
        if len(earlier) > LEFT_OUT:
            raise bad("start", str(self), _TOO_MANY)
        offsets = dict.fromkeys(range(SLOTS), first)
        return SubscriptionStart(offsets, frozenset(earlier), selection=selection, point=str(self))

    def __str__(self) -> str:
        return self.kind if self.time is None else self.time.isoformat()
