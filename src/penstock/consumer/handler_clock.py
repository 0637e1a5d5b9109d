"""How long handlers have been running, by samples. Pure.

1. Nothing is stamped when a handler begins. Its time begins with the first look that finds it
   running: it is never found overdue early, and at most one period late.
2. A turn is a message with its failed tries, or a batch. So a message that is tried again in the
   same worker begins anew.
3. `restart` begins a turn's time again. Seconds in which the loop was blocked count for no turn:
   one handler that blocks would make all others overdue.
4. A handler that still runs `grace` seconds after its cut was seen is deaf.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

    from .message import Message
    from .workers import Slot


class Found(NamedTuple):
    """What a look has found."""

    overdue: list[Slot]
    """Handlers that have run for the timeout, and have not been cut."""
    deaf: list[Slot]
    """Handlers that ignore their cut; found at every look."""
    next_due: float
    """When the next one may be overdue or deaf; infinite if none may."""


class HandlerTurn:
    """A running handler, as it was seen."""

    __slots__ = ("cut_at", "running", "since", "tries")

    def __init__(self, running: Message | list[Message], tries: int, since: float) -> None:
        self.running = running
        self.tries = tries
        self.since = since
        self.cut_at = math.inf

    def is_of(self, slot: Slot) -> bool:
        """Whether the slot still runs this turn."""
        return slot.running is self.running and _tries(self.running) == self.tries

    def move(self, since: float) -> None:
        """Let its time begin at `since`."""
        self.since = since

    def see_cut(self, now: float) -> None:
        """Note that it has been cut."""
        self.cut_at = min(self.cut_at, now)


class HandlerClock:
    """The running handlers, and since when they run."""

    def __init__(self, timeout: float | None, grace: float) -> None:
        self._timeout = math.inf if timeout is None else timeout
        self._grace = grace
        self._turns: dict[Slot, HandlerTurn] = {}
        self._restarted: dict[Message, float] = {}

    def look(self, now: float, slots: Iterable[Slot]) -> Found:
        """Note what runs at `now`, and find what has to be cut, or is deaf."""
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
        """Put a turn where it belongs; return when it may belong elsewhere."""
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
        """Begin the time of the message's handler again; no effect once it is cut."""
        self._restarted[message] = now

    def skip(self, seconds: float) -> None:
        """Leave out time in which nothing could run."""
        for turn in self._turns.values():
            turn.move(turn.since + seconds)

    def running(self) -> list[Message]:
        """The messages that ran at the last look."""
        return [message for turn in self._turns.values() for message in _messages(turn.running)]


def _messages(running: Message | list[Message]) -> list[Message]:
    return running if isinstance(running, list) else [running]


def _tries(running: Message | list[Message]) -> int:
    """The failed tries; a batch is another list each time."""
    return 0 if isinstance(running, list) else running.attempts.failed
