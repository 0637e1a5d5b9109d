"""Wakes a source when writers notify of new messages. Polling is the fallback.

1. `LISTEN` has a connection of its own. If the server ends it, or does not answer a periodic probe,
   it is replaced, and the source then polls at once, since a notification may have been missed. At
   the end it is terminated, which needs no answer.
2. There is no `LISTEN` behind a pooler, which shares connections between clients, nor in an
   application's pool of fewer than `LEAST` connections.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

from ..._core.logs import for_log, log_safely
from ..._core.runtime.cuts import end_if_cut
from .errors import is_gone
from .statements import is_pooled

if TYPE_CHECKING:
    from ..._core.clock import Clock, Signal
    from .connections import Connections

logger = logging.getLogger("sluicegate.postgres")

LEAST = 3
"""The smallest pool of which one connection may listen."""
PROBE_EVERY = 30.0
"""Seconds between two checks whether a connection that listens still answers."""
RETRY_FROM, RETRY_TO = 0.1, 5.0
"""Seconds between attempts to listen: the first and the longest delay."""

_POLLS = "%s: the source polls only, since %s"
_LOST = "%s: listening for notifications failed (%s); the source polls until it succeeds"


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
            await con.add_listener(self._channel, self._notified)
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

    def _notified(self, *_: object) -> None:
        self._news.fire()
