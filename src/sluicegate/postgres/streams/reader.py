"""Readers of a log on connections of the user: current messages, or live."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from ..._core import checks
from ..._core.clock import LOOP_CLOCK
from .drivers import call_async, call_sync, read_errors
from .message import UndecodableMessage
from .reading import POLL, LogReading, StreamReading, sleep_query
from .selection import StreamSelection

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Generator, Iterable
    from datetime import timedelta

    from .drivers import AsyncUserConnection, Query, SyncUserConnection
    from .message import StoredMessage
    from .reading import PagedReading, ReadFrom, Rows

PAGE = 500
"""Default page size: the maximum number of messages in memory."""


MessagesT = TypeVar("MessagesT")
"""The iterator over messages, asynchronous or not."""


class _Reader(ABC, Generic[MessagesT]):
    """What a reader reads, page by page, on a connection of any kind."""

    def __init__(self, connection: Any, *, schema: str = "sluicegate", page: int = PAGE) -> None:
        self._schema = checks.text("schema", schema)
        self._page = checks.count("page", page)
        self._connection = connection

    def read(self, stream: str, *, start: int = 0, limit: int | None = None) -> MessagesT:
        """Iterate over the current messages of a stream, by version.

        Args:
            stream: its name. A stream that does not exist has no messages.
            start: the first version.
            limit: maximum number of messages. Default: all.

        Suspends, or blocks on a blocking connection, for each page.
        """
        return self._messages(
            StreamReading(self._schema, stream, start, limit=limit, page=self._page)
        )

    def scan(
        self,
        *,
        category: str | None = None,
        streams: str | Iterable[str] | None = None,
        start: ReadFrom = "beginning",
        limit: int | None = None,
    ) -> MessagesT:
        """Iterate over the messages of several streams by position, up to the current horizon.

        Messages that an open transaction may still precede are omitted; a later scan from the next
        position returns them.

        Args:
            category: only streams of this category, the part of a name before the first `-`.
            streams: only these streams: one name or several; `*` matches any text, as in
                `"order-*"`. Default: all streams.
            start: `"beginning"`, a position, or an aware time: messages appended at that time or
                later, by the server's clock.
            limit: maximum number of messages. Default: all.

        Suspends, or blocks on a blocking connection, for each page.
        """
        return self._messages(self._of_log(category, streams, start, limit=limit))

    def follow(
        self,
        *,
        category: str | None = None,
        streams: str | Iterable[str] | None = None,
        start: ReadFrom = "next",
        limit: int | None = None,
        timeout: float | timedelta | None = None,
        poll: float | timedelta = POLL,
    ) -> MessagesT:
        """Like `scan`, but continue with new messages as they are appended.

        Stores no position; use a subscription for that.

        Args:
            category: as for `scan`.
            streams: as for `scan`.
            start: as for `scan`, or `"next"`, the default: messages appended after the first
                query. With a time, messages appended before it are omitted; every message
                appended from now on is returned, regardless of the server's clock.
            limit: end after this number of messages. Default: none.
            timeout: seconds without a message after which the iteration ends. Default: never.
            poll: seconds between two polls of the log while it has no new messages. Default 0.25.

        Suspends or blocks for each page and until there are messages.
        """
        reading = self._of_log(category, streams, start, limit=limit, live=True)
        return self._messages(reading, _Patience(timeout, poll))

    def _of_log(
        self,
        category: str | None,
        streams: str | Iterable[str] | None,
        start: ReadFrom,
        *,
        limit: int | None,
        live: bool = False,
    ) -> LogReading:
        return LogReading(
            self._schema,
            StreamSelection.of(category, streams),
            start,
            limit=limit,
            page=self._page,
            live=live,
        )

    @abstractmethod
    def _messages(self, reading: PagedReading, patience: _Patience | None = None) -> MessagesT:
        """Iterate over the messages of a reading."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._schema!r})"


class StreamReader(_Reader["AsyncGenerator[StoredMessage]"]):
    """Reads the log of a schema on your async connection.

    Holds one page of messages. Between two pages, and after an iteration has ended in any way, the
    connection is free for other statements.

    Args:
        connection: your own: an asyncpg connection (pooled or not), a psycopg 3 `AsyncConnection`,
            or an SQLAlchemy `AsyncSession` or `AsyncConnection`. Inside a transaction,
            `read` also returns messages appended in it.
        schema: the schema in which `sluicegate pg install` created the log; default `"sluicegate"`.
        page: maximum number of messages read by one statement. Default 500. A page of several
            messages has at most 16 MiB.

    An iteration yields the messages before one that cannot be decoded, and then raises
    `UndecodableMessage`, which names the position and version to continue after.

    Iterations raise `RefusedError` if the log is not installed or the role may not read it,
    `ConfigError` for another kind of connection, and otherwise the driver's errors. `scan` and
    `follow` raise `ConfigError` on a standby server and in a transaction above READ COMMITTED,
    where the complete part of the log cannot be determined.
    """

    def __init__(
        self, connection: AsyncUserConnection, *, schema: str = "sluicegate", page: int = PAGE
    ) -> None:
        super().__init__(connection, schema=schema, page=page)

    async def _messages(
        self, reading: PagedReading, patience: _Patience | None = None
    ) -> AsyncGenerator[StoredMessage]:
        while True:
            if (query := reading.query()) is not None:
                for message in reading.take(await self._rows(query)):
                    if patience is not None:
                        patience.renew()
                    if isinstance(message, UndecodableMessage):
                        raise message
                    yield message
            elif patience is None or reading.is_over or (pause := patience.pause()) is None:
                return
            else:
                await LOOP_CLOCK.sleep(pause)

    async def _rows(self, query: Query) -> Rows:
        with read_errors(self._schema):
            return await call_async(self._connection, query)


class SyncStreamReader(_Reader["Generator[StoredMessage]"]):
    """Like `StreamReader`, on a blocking connection.

    The connection is a psycopg 3 `Connection`, or an SQLAlchemy `Session` or `Connection`.
    """

    def __init__(
        self, connection: SyncUserConnection, *, schema: str = "sluicegate", page: int = PAGE
    ) -> None:
        super().__init__(connection, schema=schema, page=page)

    def _messages(
        self, reading: PagedReading, patience: _Patience | None = None
    ) -> Generator[StoredMessage]:
        while True:
            if (query := reading.query()) is not None:
                for message in reading.take(self._rows(query)):
                    if patience is not None:
                        patience.renew()
                    if isinstance(message, UndecodableMessage):
                        raise message
                    yield message
            elif patience is None or reading.is_over or (pause := patience.pause()) is None:
                return
            else:
                self._rows(sleep_query(self._schema, pause))

    def _rows(self, query: Query) -> Rows:
        with read_errors(self._schema):
            return call_sync(self._connection, query)


class _Patience:
    """The wait of a live iteration for messages."""

    def __init__(self, timeout: float | timedelta | None, poll: float | timedelta) -> None:
        timeout = checks.optional_seconds("timeout", timeout, usual=checks.LONG_PERIOD)
        self._most = math.inf if timeout is None else timeout
        self._poll = checks.seconds("poll", poll, usual=checks.LONG_DELAY)
        self._left = self._most

    def renew(self) -> None:
        """Restart the timeout after a message."""
        self._left = self._most

    def pause(self) -> float | None:
        """Return the seconds until the next poll; `None` if the time is up."""
        if self._left <= 0:
            return None
        pause = min(self._poll, self._left)
        self._left -= pause
        return pause
