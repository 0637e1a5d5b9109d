"""The task that supervises running handlers by sampling.

1. Samples are `min(0.5, max(0.005, timeout / 10))` seconds apart, with an extra one when a handler
   may be overdue. So a handler is cancelled after its timeout, at most one period late.
2. No time is recorded when a handler begins. Its time starts with the first sample that finds it
   running, so it is never found overdue early.
3. A turn is identified by a message and its number of failed attempts, or by a batch. A retry in
   the same worker is therefore a new turn. `in_progress` restarts a turn's time.
4. A handler that ignores its cancellation for `GRACE` seconds is reported once. It keeps its worker
   and its key until it ends.
5. A sample that is late by more than `BLOCKED` seconds means that the event loop was blocked, most
   likely by a handler. It is reported with the handlers that have run since the last sample: those
   that have ended in that time come first. The time is not counted for any handler: otherwise one
   blocking handler would make all others overdue.
6. For a source with its own deadlines, the deadline of every held record is extended every
   `extend_every` seconds: queued, running, backing off, blocked, or fetched and waiting for room.
"""

from __future__ import annotations

import logging
import math
from typing import TYPE_CHECKING, NamedTuple

from ..._core.logs import for_log, log_safely
from ..._core.source import ExtendsRecords
from ..progress.draining import GRACE, report_deaf
from .results import HandlerTimeout

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ..._core.source import SourceRecord
    from ..lanes.message import Message
    from ..operating.places import Places
    from .workers import Slot


LONGEST_PERIOD = 0.5
SHORTEST_PERIOD = 0.005
SAMPLES_PER_TIMEOUT = 10
BLOCKED = 1.0
"""Delay in seconds after which a sample counts as late."""
MOST_NAMED = 5
"""Maximum number of messages named in a log line."""

logger = logging.getLogger("sluicegate.consumer")

_BLOCKED = (
    "%s: the event loop was blocked for %.3g s, during %s. Code that blocks must run in a thread: "
    "as a handler that is a plain function, or by `await in_thread(...)`"
)
_NOT_EXTENDED = "%s: the source did not extend the deadline of %d records (%s)"


class Sweeper:
    """The task that cancels handlers that run too long, and extends the source's own deadlines."""

    def __init__(self, places: Places, timeout: float | None) -> None:
        self._places = places
        self._clock = places.run.clock
        self._name = places.run.name
        self._timeout = timeout
        self._period = LONGEST_PERIOD
        if timeout is not None:
            self._period = min(LONGEST_PERIOD, max(SHORTEST_PERIOD, timeout / SAMPLES_PER_TIMEOUT))
        self._handlers = HandlerClock(timeout, GRACE)

    async def run(self, fetched: Callable[[], Iterable[SourceRecord]]) -> None:
        """Sample until cancelled; `fetched` returns the records that wait for room."""
        every = self._places.source.capabilities.extend_every or math.inf
        now = self._clock.now()
        extend_at = now + every
        while True:
            due = min(self._sweep(now), extend_at)
            await self._clock.sleep(max(0.0, due - now))
            now = self._clock.now()
            if now - due > BLOCKED:
                self._was_blocked(now - due)
            if now >= extend_at:
                self._extend([*self._held(), *fetched()])
                extend_at = now + every

    def in_progress(self, message: Message) -> None:
        """Restart the time of the message's handler, and that of the source."""
        self._handlers.restart(message, self._clock.now())
        if not message.is_unparked:
            self._extend([message.record])

    def _sweep(self, now: float) -> float:
        """Take a sample and act on it; return the time of the next one."""
        slots = self._places.workers.slots
        found = self._handlers.look(now, slots)
        for slot in slots:
            slot.forget_ended()
        for slot in found.overdue:
            slot.cut(HandlerTimeout(f"the handler exceeded its timeout of {self._timeout:g} s"))
        for slot in found.deaf:
            report_deaf(slot, self._places.run)
        soon = GRACE if found.overdue else math.inf
        return min(now + self._period, now + soon, found.next_due)

    def _was_blocked(self, seconds: float) -> None:
        workers = self._places.workers
        ended = [message for slot in workers.slots for message in messages_of(slot.ended)]
        turns = dict.fromkeys([*ended, *self._handlers.running(), *workers.running])
        self._handlers.skip(seconds)
        named = [message.coordinates for message in turns][:MOST_NAMED]
        told = ", ".join(named) + (", ..." if len(turns) > MOST_NAMED else "")
        what = f"the handling of {told}" if told else "no handler: another task or a sink blocks it"
        log_safely(logger, logging.WARNING, _BLOCKED, self._name, seconds, what)

    def _held(self) -> Iterable[SourceRecord]:
        return (
            message.record
            for message, *_ in self._places.standings()
            if not (message.claim.is_closed or message.is_unparked)
        )

    def _extend(self, records: list[SourceRecord]) -> None:
        source = self._places.source
        try:
            if records and isinstance(source, ExtendsRecords):
                source.extend(records)
        except Exception as error:  # at worst they are delivered again
            told = for_log(error)
            log_safely(logger, logging.WARNING, _NOT_EXTENDED, self._name, len(records), told)


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
            next_due = min(next_due, self._classify(slot, turn, now, found))
        self._restarted.clear()
        return found._replace(next_due=next_due)

    def _classify(self, slot: Slot, turn: HandlerTurn, now: float, found: Found) -> float:
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
    """Return the number of failed attempts; a batch is a new list each time."""
    return 0 if isinstance(running, list) else running.attempts.failed
