"""Notifications of commits (`Notifier`), and sources that wake up by them (`Waker`).

1. `NOTIFY` in a transaction takes a lock that serialises the commits of a database, so it is sent
   after the commit, on a separate connection.
2. One notification covers all earlier commits: it has no payload, and at most one is sent every
   `EVERY` seconds. The first one is sent immediately.
3. Notifications only shorten the readers' poll interval, so failures are harmless: the first one
   before the next success is logged, and the next call tries again.
4. `LISTEN` has a connection of its own. If the server ends it, or does not answer a periodic probe,
   it is replaced, and the source then polls immediately, since a notification may have been missed.
   At the end it is terminated, which needs no response.
5. There is no `LISTEN` behind a pooler, which shares connections between clients, nor in an
   application's pool of fewer than `LEAST` connections.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from typing import TYPE_CHECKING, Any

from ..._core.clock import LOOP_CLOCK
from ..._core.logs import for_log, log_safely
from ..._core.runtime.cuts import end_if_cut
from ..._core.runtime.threads import close_within
from .errors import is_gone
from .statements import is_pooled

if TYPE_CHECKING:
    from ..._core.clock import Clock, Signal, TimerHandle
    from .connections import Connections


logger = logging.getLogger("sluicegate.postgres")

EVERY = 0.02
"""Minimum interval between two notifications, in seconds."""
LEAST = 3
"""The smallest pool of which one connection may listen."""
PROBE_EVERY = 30.0
"""Seconds between two checks whether a connection that listens still answers."""
RETRY_FROM, RETRY_TO = 0.1, 5.0
"""Seconds between attempts to listen: the first and the longest delay."""
_POLLS = "%s: the source polls only, since %s"
_LOST = "%s: listening for notifications failed (%s); the source polls until it succeeds"


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
        self._task.add_done_callback(self._note_sent)

    def _note_sent(self, task: asyncio.Task[None]) -> None:
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


class Waker:
    """Fires `news` for each notification."""

    def __init__(
        self, name: str, channel: str, connections: Connections, news: Signal, clock: Clock
    ) -> None:
        self._name = name
        self._channel = channel
        self._connections = connections
        self._news = news
        self._clock = clock

    async def run(self) -> None:
        """Listen until cancelled; return if listening is not possible."""
        if self._connections.pool.get_max_size() < LEAST:
            told = f"its pool has fewer than {LEAST} connections"
            log_safely(logger, logging.INFO, _POLLS, self._name, told)
            return
        delay = RETRY_FROM
        while True:
            try:
                if not await self._listen():
                    log_safely(logger, logging.INFO, _POLLS, self._name, "it is behind a pooler")
                    return
                delay = RETRY_FROM
            except Exception as error:
                end_if_cut(error)
                log_safely(logger, logging.DEBUG, _LOST, self._name, for_log(error))
            await self._clock.sleep(delay)
            delay = min(RETRY_TO, 2 * delay)

    async def _listen(self) -> bool:
        """Listen until the connection ends; return false behind a pooler."""
        async with self._connections.opening() as con:
            if await is_pooled(con):
                return False
            gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()

            def ended(_: Any) -> None:
                if not gone.done():
                    gone.set_result(None)

            con.add_termination_listener(ended)
            await con.add_listener(self._channel, self._on_notification)
            self._news.fire()
            try:
                while not await self._is_done(gone):
                    await con.execute("SELECT")
            finally:
                if not is_gone(con):  # ends the LISTEN without a round trip
                    con.remove_termination_listener(ended)
                    con.terminate()
        return True

    async def _is_done(self, gone: asyncio.Future[None]) -> bool:
        """Wait for the end of the connection, for at most `PROBE_EVERY` seconds."""
        try:
            async with self._clock.timeout_at(self._clock.now() + PROBE_EVERY):
                await asyncio.shield(gone)
        except TimeoutError:
            return False
        return True

    def _on_notification(self, *_: object) -> None:
        self._news.fire()
