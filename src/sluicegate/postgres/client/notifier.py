"""Notifications of commits, sent after the commit on a separate connection.

1. `NOTIFY` in a transaction takes a lock that serialises the commits of a database, so it is sent
   separately.
2. One notification covers all earlier commits: it has no payload, and at most one is sent every
   `EVERY` seconds. The first one is sent immediately.
3. Notifications only shorten the readers' poll interval, so failures are harmless: the first one
   before the next success is logged, and the next call tries again.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from typing import TYPE_CHECKING

from ..._core.clock import LOOP_CLOCK
from ..._core.logs import for_log
from ..._core.runtime.threads import close_within

if TYPE_CHECKING:
    from ..._core.clock import Clock, TimerHandle
    from .connections import Connections

logger = logging.getLogger("sluicegate.postgres")

EVERY = 0.02
"""Minimum interval between two notifications, in seconds."""


class Notifier:
    """Sends notifications on one channel. `readers` names the listeners, for the log."""

    def __init__(
        self, connections: Connections, channel: str, readers: str, *, clock: Clock = LOOP_CLOCK
    ) -> None:
        self._connections = connections
        self._channel = channel
        self._readers = readers
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._timer: TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None
        self._not_before = clock.now()
        self._is_due = False
        self._has_failed = False

    def soon(self) -> None:
        """Notify soon. May be called from any thread, any number of times.

        Does not suspend, and never raises.
        """
        if threading.get_ident() == self._thread:
            self._schedule()
            return
        try:
            self._loop.call_soon_threadsafe(self._schedule)
        except RuntimeError:  # the loop is closed: readers poll
            return

    def _schedule(self) -> None:
        self._is_due = True
        if self._task is None and self._timer is None:
            self._set_timer()

    def _set_timer(self) -> None:
        if (wait := self._not_before) <= self._clock.now():
            self._send()
        else:
            self._timer = self._clock.call_at(wait, self._send)

    def _send(self) -> None:
        self._timer = None
        self._is_due = False
        self._not_before = self._clock.now() + EVERY
        self._task = self._loop.create_task(self._notify())
        self._task.add_done_callback(self._sent)

    def _sent(self, task: asyncio.Task[None]) -> None:
        self._task = None
        if self._is_due and not task.cancelled():
            self._set_timer()

    async def _notify(self) -> None:
        channel = self._channel.replace("'", "''")
        try:
            async with self._connections.lent(keep=True, answered=True) as con:
                await con.execute(f"SELECT pg_catalog.pg_notify('{channel}', '')")
        except Exception as error:
            if not self._has_failed:
                logger.warning("%s are not notified, and poll: %s", self._readers, for_log(error))
            self._has_failed = True
        else:
            self._has_failed = False

    async def close(self) -> None:
        """Send a pending notification, and wait for it, for the time in which its connections close.

        Suspends; cancellation drops it.
        """
        until = self._clock.now() + close_within(self._connections.close_timeout)
        try:
            async with self._clock.timeout_at(until):
                while self._task is not None or self._timer is not None:
                    if self._timer is not None:
                        self._timer.cancel()
                        self._send()
                    if self._task is not None:
                        await asyncio.wait((self._task,))
        except TimeoutError:
            self._is_due = False
            if self._task is not None:
                self._task.cancel()
