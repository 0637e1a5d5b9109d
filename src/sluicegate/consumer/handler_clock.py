"""Running times of handlers, by sampling. Pure.

1. No time is recorded when a handler begins. Its time starts with the first sample that finds it
   running, so it is never found overdue early, and at most one period late.
2. A turn is identified by a message and its number of failed tries, or by a batch. A retry in the
   same worker is therefore a new turn.
3. `restart` restarts a turn's time. Time in which the loop was blocked does not count: otherwise
   one blocking handler would make all others overdue.
4. A handler that still runs `grace` seconds after its cancellation was seen is deaf.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

    from .message import Message
    from .workers import Slot


class Found(NamedTuple):
    """The result of a sample."""

    overdue: list[Slot]
    """Handlers that have exceeded the timeout and have not been cancelled."""
    deaf: list[Slot]
    """Handlers that ignore their cancellation; listed in every sample."""
    next_due: float
    """The time at which the next handler may become overdue or deaf; infinite if none may."""


class HandlerTurn:
    """A running handler as last seen."""

    __slots__ = ("cut_at", "running", "since", "tries")

    def __init__(self, running: Message | list[Message], tries: int, since: float) -> None:
        self.running = running
        self.tries = tries
        self.since = since
        self.cut_at = math.inf

    def is_of(self, slot: Slot) -> bool:
        """Return whether the slot still runs this turn."""
        return slot.running is self.running and _tries(self.running) == self.tries

    def move(self, since: float) -> None:
        """Set the start of its time to `since`."""
        self.since = since

    def see_cut(self, now: float) -> None:
        """Record that it has been cancelled."""
        self.cut_at = min(self.cut_at, now)


class HandlerClock:
    """The running handlers, and the start of each."""

    def __init__(self, timeout: float | None, grace: float) -> None:
        self._timeout = math.inf if timeout is None else timeout
        self._grace = grace
        self._turns: dict[Slot, HandlerTurn] = {}
        self._restarted: dict[Message, float] = {}

    def look(self, now: float, slots: Iterable[Slot]) -> Found:
        """Take a sample at `now`; return the overdue and the deaf handlers."""
        found, next_due = Found([], [], math.inf), math.inf
        turns, self._turns = self._turns, {}
        for slot in slots:
            if slot.running is None:
                continue
            turn = turns.get(slot)
            if turn is None or not turn.is_of(slot):
                turn = HandlerTurn(slot.running, _tries(slot.running), now)
            self._turns[slot] = turn
            next_due = min(next_due, self._judge(slot, turn, now, found))
        self._restarted.clear()
        return found._replace(next_due=next_due)

    def _judge(self, slot: Slot, turn: HandlerTurn, now: float, found: Found) -> float:
        """Classify a turn; return the time at which its class may change."""
        if self._restarted:
            asked = [self._restarted.get(message, turn.since) for message in slot.messages()]
            turn.move(max(asked))
        if slot.is_cut:
            turn.see_cut(now)
            due, over = turn.cut_at + self._grace, found.deaf
        else:
            due, over = turn.since + self._timeout, found.overdue
        if now < due:
            return due
        over.append(slot)
        return math.inf

    def restart(self, message: Message, now: float) -> None:
        """Restart the time of the message's handler; no effect after its cancellation."""
        self._restarted[message] = now

    def skip(self, seconds: float) -> None:
        """Exclude time in which no handler could run."""
        for turn in self._turns.values():
            turn.move(turn.since + seconds)

    def running(self) -> list[Message]:
        """Return the messages that were running at the last sample."""
        return [message for turn in self._turns.values() for message in messages_of(turn.running)]


def messages_of(turn: Message | list[Message] | None) -> list[Message]:
    """Return the messages of a turn; `None` is no turn."""
    return [] if turn is None else turn if isinstance(turn, list) else [turn]


def _tries(running: Message | list[Message]) -> int:
    """Return the number of failed tries; a batch is a new list each time."""
    return 0 if isinstance(running, list) else running.attempts.failed
