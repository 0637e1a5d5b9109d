"""The task that supervises running handlers by sampling.

1. Samples are `min(0.5, max(0.005, timeout / 10))` seconds apart, with an extra one when a handler
   may be overdue. So a handler is cancelled after its timeout, at most one period late.
2. A handler that ignores its cancellation is reported once. It keeps its worker and its key until
   it ends.
3. A sample that is late by more than `BLOCKED` seconds means that the event loop was blocked, most
   likely by a handler. It is reported with the handlers that have run since the last sample: those
   that have ended in that time come first. The time is not counted for any handler.
4. For a source with its own deadlines, the deadline of every held record is extended every
   `extend_every` seconds: queued, running, backing off, blocked, or fetched and waiting for room.
"""

from __future__ import annotations

import logging
import math
from typing import TYPE_CHECKING

from .._core.logs import for_log, log_safely
from .._core.source import ExtendsRecords
from .handler_clock import HandlerClock, messages_of
from .quiet import GRACE, report_deaf
from .results import HandlerTimeout
from .standing import standings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from .._core.source import SourceRecord
    from .message import Message
    from .parts import Parts

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

    def __init__(self, parts: Parts, timeout: float | None) -> None:
        self._parts = parts
        self._clock = parts.commons.clock
        self._name = parts.commons.name
        self._timeout = timeout
        self._period = LONGEST_PERIOD
        if timeout is not None:
            self._period = min(LONGEST_PERIOD, max(SHORTEST_PERIOD, timeout / SAMPLES_PER_TIMEOUT))
        self._handlers = HandlerClock(timeout, GRACE)

    async def run(self, fetched: Callable[[], Iterable[SourceRecord]]) -> None:
        """Sample until cancelled; `fetched` returns the records that wait for room."""
        every = self._parts.source.traits.extend_every or math.inf
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
        slots = self._parts.workers.slots
        found = self._handlers.look(now, slots)
        for slot in slots:
            slot.forget_ended()
        for slot in found.overdue:
            slot.cut(HandlerTimeout(f"the handler exceeded its timeout of {self._timeout:g} s"))
        for slot in found.deaf:
            report_deaf(slot, self._parts.commons)
        soon = GRACE if found.overdue else math.inf
        return min(now + self._period, now + soon, found.next_due)

    def _was_blocked(self, seconds: float) -> None:
        workers = self._parts.workers
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
            for message, *_ in standings(self._parts)
            if not (message.claim.is_closed or message.is_unparked)
        )

    def _extend(self, records: list[SourceRecord]) -> None:
        source = self._parts.source
        try:
            if records and isinstance(source, ExtendsRecords):
                source.extend(records)
        except Exception as error:  # at worst they are delivered again
            told = for_log(error)
            log_safely(logger, logging.WARNING, _NOT_EXTENDED, self._name, len(records), told)
