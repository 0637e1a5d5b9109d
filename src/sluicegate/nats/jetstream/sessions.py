"""The connections of an open source, one after another.

1. nats-py restores a lost connection by itself. If it gives up, all claims end, and a new
   connection is opened.
2. Opening waits for the first attempt, so that it raises configuration errors. An unreachable
   server is reported in `explain()`, and tried again without a limit.
3. If the deliveries of a message are used up, the server no longer delivers it. It is not lost,
   since it is still in the stream, but no consumer receives it. The server's advisory about it is
   logged as an error, with its sequence number.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
from typing import TYPE_CHECKING, Any

from ..._core.clock import LOOP_CLOCK, Signal, wait_until
from ..._core.errors import ConfigError, UnavailableError
from ..._core.logs import for_log, log_safely
from ..._core.runtime.cuts import end_if_cut
from ..._core.runtime.threads import close_within
from ..._core.source import Troubles
from ..._core.text import text_of
from .channel import Channel, StreamApi, StreamSession
from .intake import StreamRecord
from .moves import RETRY, logger
from .serving import Serving

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from ..._core.source import ClaimHost, Fetched, Position, SourceClaim, SourceRecord, Unread
    from ..options import NatsOptions
    from .options import ReadOptions

LONGEST_RETRY = 5.0
"""The longest delay in seconds between attempts to connect."""

_NOT_CLOSED = "%s: held messages could not be given back (%s); they are redelivered after %.3g s"
_USED_UP = (
    "%s: the consumer %r no longer delivers message %s after %s deliveries, its max_deliver; the "
    "message stays in the stream"
)
_DELETED = "%s: the consumer %r was deleted"


class StreamSessions:
    """An open source."""

    def __init__(
        self,
        options: ReadOptions,
        connection: NatsOptions,
        host: ClaimHost,
        close_timeout: float,
    ) -> None:
        self._options = options
        self._connection = connection
        self._host = host
        self._close_timeout = close_timeout
        self._troubles = Troubles(host, options.stream, logger)
        self._news = Signal()
        self._serving: Serving | None = None
        self._failure: BaseException | None = None
        self._first_try: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def run(self) -> None:
        """Serve until cancelled. Errors that a retry cannot resolve are raised by `fetch`."""
        retry = RETRY
        while True:
            try:
                await self._serve()
                retry = RETRY
            except ConfigError as error:
                self._fail(error)
                return
            except Exception as error:  # reported, and tried again
                end_if_cut(error)
                self._troubles.note("connection", text_of(error))
                self._end_first_try()
                await LOOP_CLOCK.sleep(retry)
                retry = min(2 * retry, LONGEST_RETRY)

    async def wait_opened(self) -> None:
        """Suspend until the first attempt has ended. Raises `ConfigError` if it shows a mistake."""
        await self._first_try

    def _end_first_try(self) -> None:
        if not self._first_try.done():
            self._first_try.set_result(None)

    def _fail(self, error: BaseException) -> None:
        self._failure = error
        self._troubles.note(
            "connection", str(error)
        )  # without a claim, there is no fetch to raise it
        if not self._first_try.done():
            self._first_try.set_exception(error)
        self._news.fire()

    async def _serve(self) -> None:
        """Open one connection and serve until it is closed.

        Raises `ConfigError`, and `UnavailableError` for other errors, with a message for operators.
        """
        channel = Channel(self._connection, self._options.ack_wait)
        session = StreamSession(
            options=self._options,
            connection=self._connection,
            channel=channel,
            api=StreamApi(channel.request, self._options),
            host=self._host,
            troubles=self._troubles,
        )
        serving = Serving(session, self._news)
        try:
            await channel.open(serving.is_lost, serving.is_back)
            await serving.prepare()
            await Advisories(self._options, channel, serving.moves.deleted).listen()
            self._troubles.note("connection", None)
            if (task := asyncio.current_task()) is not None and task.cancelling():
                raise asyncio.CancelledError  # the client has swallowed it
            self._serving = serving
            self._end_first_try()
            await serving.run()
        except asyncio.CancelledError:
            await self._close(serving)
            raise
        except ConfigError:
            raise
        except Exception as error:
            raise UnavailableError(session.reason(error)) from error
        finally:
            self._serving = None
            serving.moves.lose_all()
            await channel.close()

    async def _close(self, serving: Serving) -> None:
        within = close_within(self._close_timeout)
        try:
            async with LOOP_CLOCK.timeout_at(LOOP_CLOCK.now() + within):
                await serving.close()
        except Exception as error:
            told, wait = for_log(error), self._options.ack_wait
            log_safely(logger, logging.INFO, _NOT_CLOSED, self._options.stream, told, wait)

    # -- the consumer's calls ----------------------------------------------------------------------

    async def fetch(self, claims: Sequence[SourceClaim], most: int) -> list[Fetched]:
        """Deliver records; suspend until there are some. A cancelled call has delivered nothing."""
        while True:
            if self._failure is not None:
                raise self._failure
            if self._serving is not None and (found := self._serving.take(claims, most)):
                return found
            await wait_until(LOOP_CLOCK, math.inf, self._news)

    async def commit(self, positions: Mapping[SourceClaim, Position]) -> list[SourceClaim]:
        """Acknowledge the settled records of these claims. Raises client errors."""
        return [] if self._serving is None else await self._serving.settle(positions.keys())

    def ends(self, claims: Collection[SourceClaim]) -> dict[SourceClaim, int]:
        """Return the sequence numbers after the last arrived messages."""
        return {} if self._serving is None else self._serving.ends(claims)

    async def lag(self, claims: Collection[SourceClaim]) -> dict[SourceClaim, Unread]:
        """Count the unsettled messages on the server. Raises client errors."""
        return {} if self._serving is None else await self._serving.lag(claims)

    def extend(self, records: Iterable[SourceRecord]) -> None:
        """Extend records in the background."""
        if self._serving is not None:
            self._serving.extend([each.reply for each in records if isinstance(each, StreamRecord)])


class Advisories:
    """Listens to the advisories about the consumers of one source."""

    def __init__(
        self, options: ReadOptions, channel: Channel, deleted: Callable[[int], None]
    ) -> None:
        self._was_deleted = deleted
        self._options = options
        self._channel = channel
        self._names = {options.consumer(number): number for number in range(options.count)}

    async def listen(self) -> None:
        """Subscribe. Without the permission there are no advisories."""
        prefix, stream = "$JS.EVENT.ADVISORY.CONSUMER", self._options.stream
        await self._channel.subscribe(f"{prefix}.MAX_DELIVERIES.{stream}.*", self._used_up)
        await self._channel.subscribe(f"{prefix}.DELETED.{stream}.*", self._deleted)

    async def _used_up(self, message: Any) -> None:
        told = json.loads(message.data)
        if (name := told.get("consumer")) in self._names:
            sequence, tries = told.get("stream_seq"), told.get("deliveries")
            log_safely(logger, logging.ERROR, _USED_UP, self._options.stream, name, sequence, tries)

    async def _deleted(self, message: Any) -> None:
        name = json.loads(message.data).get("consumer")
        if name in self._names:
            log_safely(logger, logging.WARNING, _DELETED, self._options.stream, name)
            self._was_deleted(self._names[name])
