"""Backoffs, the flush slot and the flush timeouts of a batch's deliveries.

A batch has one activity, or one per line of branches written concurrently. It holds a flush slot
while at least one activity is not backing off. Each activity has its own flush timeout, which does
not run during its backoffs.

Before a shutdown, backoffs are not shortened. In a shutdown:

1. Waiting batches are attempted immediately. After that, each wait is at most a quarter of the
   remaining time, so attempts become more frequent towards the deadline and use all of the time.
   With 24 s left there are at most 24 waits.
2. A wait that the destination requested (`Retry-After`) is not shortened if an attempt fits after
   it.
3. An attempt fits if the remaining time is longer than the last attempt took. Otherwise none is
   made: items of a cut-off write would be unknown instead of unsent.
"""

from __future__ import annotations

import asyncio
import math
from datetime import timedelta
from typing import TYPE_CHECKING, Protocol, SupportsFloat

from ..clock import LOOP_CLOCK, wait_until

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..clock import Clock, Signal
    from .host import Backoffs, Slots


SHORTEST = 0.02
"""Seconds: the margin after the last attempt, and the minimum of shortened waits."""
SHARE = 0.25
LONGEST_ASKED = 300.0
"""Seconds: the default upper limit on a destination's `Retry-After`."""
WHOLE_BATCH: object = object()
"""The only activity of a batch that is not written on several lines concurrently."""


class Resting(Protocol):
    """A delivery in a backoff."""

    @property
    def activity(self) -> object: ...
    @property
    def closed(self) -> bool: ...
    @property
    def is_hurried(self) -> bool: ...


class Pacing:
    """The clock, flush slot and activities of one sealed batch, shared by all its branches.

    A host without slots gives `backoffs` alone.
    """

    __slots__ = ("_activities", "_backoffs", "_idle", "_slots", "lets_pass")

    def __init__(self, slots: Slots | None, *, backoffs: Backoffs | None = None) -> None:
        self.lets_pass = False  # whether a later batch may overtake this one in its backoff
        self._slots = slots
        self._backoffs = slots if backoffs is None else backoffs
        self._activities = 1
        self._idle = 0

    def detach(self) -> None:
        self._slots = self._backoffs = None

    def let_pass(self, *, others: bool) -> None:
        self.lets_pass = others

    @property
    def clock(self) -> Clock:
        return LOOP_CLOCK if self._backoffs is None else self._backoffs.clock

    @property
    def deadline(self) -> float | None:
        return None if self._backoffs is None else self._backoffs.deadline

    @property
    def stopping(self) -> bool:
        return self._backoffs is not None and self._backoffs.stopping

    @property
    def waits_for_repair(self) -> bool:
        """Whether to wait for a repair; false outside a batcher, where no log shows the wait."""
        return self._backoffs is not None and self._backoffs.waits_for_repair

    def next_try(
        self, until: float, *, through_stop: bool, not_before: float, lasts: float
    ) -> float | None:
        """Return when to attempt after a wait until `until`; `None` if that would be too late."""
        if math.isnan(until):
            until = self.clock.now()
        if through_stop or not self.stopping:
            return until
        deadline = self.deadline
        if deadline is None:
            return None
        return next_try(self.clock.now(), until, deadline, not_before=not_before, lasts=lasts)

    def has_time(self, lasts: float) -> bool:
        if not self.stopping:
            return True
        deadline = self.deadline
        return deadline is not None and self.clock.now() <= latest_try(deadline, lasts)

    async def rest(
        self,
        delivery: Resting,
        until: float,
        *signals: Signal,
        through_stop: bool,
        not_before: float,
        lasts: float,
    ) -> None:
        """Wait without holding a flush slot.

        Unless `through_stop`, the start of a shutdown ends the wait, but not before `not_before`,
        the time that the destination requested, if an attempt still fits after it.
        """
        backoffs, slots = self._backoffs, self._slots
        if backoffs is None:
            await wait_until(LOOP_CLOCK, until, *signals)
            return
        began_stopping = backoffs.stopping
        if slots is not None:
            slots.unwatch(delivery.activity)
            self._idle += 1
            self._give_slot_if_idle(slots)
        try:
            await backoffs.pause(until, *signals, through_stop=through_stop)
            is_urgent = began_stopping or delivery.is_hurried
            if not is_urgent and self._keeps_waiting(backoffs, not_before, lasts):
                await backoffs.pause(not_before, *signals, through_stop=True)
            if delivery.closed:
                raise asyncio.CancelledError
            if slots is not None:
                await slots.take_slot()
        except BaseException:
            if slots is not None:
                slots.force_slot()
            raise
        finally:
            if slots is not None:
                self._idle -= 1
                slots.watch(delivery.activity)

    @staticmethod
    def _keeps_waiting(backoffs: Backoffs, not_before: float, lasts: float) -> bool:
        deadline = backoffs.deadline
        if deadline is None or not backoffs.stopping:
            return False
        return backoffs.clock.now() < not_before <= latest_try(deadline, lasts)

    def _give_slot_if_idle(self, slots: Slots) -> None:
        if self._idle == self._activities:
            slots.give_slot()

    # -- activities --------------------------------------------------------------------------------

    def watch(self, activity: object) -> None:
        if self._slots is not None:
            self._slots.watch(activity)

    def split(self, activity: object, lines: Sequence[object]) -> None:
        """Replace an activity by several, until the last of them has ended."""
        self._activities += len(lines) - 1
        if self._slots is not None:
            self._slots.unwatch(activity)
            for line in lines:
                self._slots.watch(line)

    def end(self, line: object, *, resumes: object | None) -> None:
        """End one of several activities; after the last one, `resumes` continues."""
        slots = self._slots
        if slots is not None:
            slots.unwatch(line)
        if resumes is not None:
            self.watch(resumes)
            return
        self._activities -= 1
        if slots is not None:
            self._give_slot_if_idle(slots)


def latest_try(cut_at: float, lasts: float) -> float:
    """Return the latest start of an attempt of `lasts` seconds if writes are cut at `cut_at`."""
    return cut_at - lasts - SHORTEST


def next_try(
    now: float, until: float, cut_at: float, *, not_before: float = 0.0, lasts: float = 0.0
) -> float | None:
    """Return the time before the cut of the attempt planned for `until`; `None` if none fits.

    `not_before` is the time requested by the destination, `lasts` the expected duration of an
    attempt in seconds.
    """
    latest = latest_try(cut_at, lasts)
    if now >= latest:
        return None
    soon = min(until, now + max(SHARE * (latest - now), SHORTEST))
    return min(max(soon, not_before) if not_before <= latest else soon, latest)


def asked_wait(error: BaseException, longest: float) -> float | None:
    """Return the error's `retry_after`, 0 to `longest` seconds; `None` if it is not a duration."""
    asked = getattr(error, "retry_after", None)
    if asked is None:  # before the slow check against a Protocol
        return None
    if isinstance(asked, timedelta):
        asked = asked.total_seconds()
    if isinstance(asked, bool) or not isinstance(asked, SupportsFloat):
        return None
    try:
        seconds = float(asked)
    except (OverflowError, ValueError, TypeError):
        return None
    return None if math.isnan(seconds) else min(max(0.0, seconds), longest)
