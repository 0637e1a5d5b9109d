"""The checked arguments of a source."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...._core import checks
from ...._core.checks import bad
from ...._core.subscriptions import SLOTS, SubscriptionLocks, SubscriptionState

if TYPE_CHECKING:
    from datetime import timedelta

    from .selection import SelectedLog
    from .starts import StreamStartPoint

LOOK_EVERY = 1.0
"""Seconds between checks of the subscription while this process has slots."""


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

    @property
    def look(self) -> float:
        """Seconds between checks of the subscription while this process has slots."""
        return max(LOOK_EVERY, self.poll)

    @classmethod
    def of(
        cls,
        subscription: object,
        selection: SelectedLog,
        start: StreamStartPoint,
        *,
        poll: float | timedelta,
        hold: float | timedelta,
        slots_at_once: int,
        ends: bool,
    ) -> StreamOptions:
        """Check the arguments. Raises `ConfigError`."""
        if checks.count("slots_at_once", slots_at_once) > SLOTS:
            raise bad("slots_at_once", slots_at_once, f"must be at most {SLOTS}")
        return cls(
            subscription=checks.text("subscription", subscription),
            selection=selection,
            start=start,
            poll=checks.seconds("poll", poll, usual=checks.LONG_DELAY),
            hold=checks.seconds("hold", hold, zero=True, usual=checks.LONG_TIMEOUT),
            slots_at_once=slots_at_once,
            ends=checks.flag("ends", ends),
        )


def check_providers(state: object, locks: object) -> None:
    """Raise `ConfigError` unless these are a state and locks, or `None`."""
    if not (state is None or isinstance(state, SubscriptionState)):
        raise bad("state", state, "must implement SubscriptionState")
    if not (locks is None or isinstance(locks, SubscriptionLocks)):
        raise bad("locks", locks, "must implement SubscriptionLocks")
