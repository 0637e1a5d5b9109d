"""Reading a log on connections of the user's, at once or live."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from .._clients.postgres.streams.faults import read_told
from .._clients.postgres.streams.reading import POLL, LogReading, StreamReading, sleep_query
from .._clients.postgres.streams.selection import StreamSelection
from .._core import checks
from .._core.clock import LOOP_CLOCK
from .drivers import call_async, call_sync

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Generator, Iterable
    from datetime import timedelta

    from .._clients.postgres.streams.query import Query
    from .._clients.postgres.streams.reading import PagedReading, ReadFrom, Rows
    from .._clients.postgres.streams.stored import StoredMessage
    from .drivers import AsyncUserConnection, SyncUserConnection

PAGE = 500
"""Default number of messages that a reader holds at most."""


class StreamReader:
    """Reads the log of a schema on an async connection of yours.

    Holds one page of messages. Between two pages the connection is free for other statements, and
    so it is once an iteration has ended, however that happens.

    Args:
        connection: of asyncpg (also of a pool) or of psycopg 3 (`AsyncConnection`), or a session or
            connection of SQLAlchemy (`AsyncSession`, `AsyncConnection`). Inside a transaction of
            yours `read` sees what you have appended there.
        schema: the schema that `penstock pg install` has made the log in.
        page: the most messages that one statement reads. Default 500.

    Iterations raise `RefusedError` where the log is not installed or the role may not read it,
    `ConfigError` for another kind of connection, and otherwise what the driver raises. `scan` and
    `follow` raise `ConfigError` for a standby server, and in a transaction above READ COMMITTED:
    there the end of the log that is complete cannot be known.
    """

    def __init__(
        self, connection: AsyncUserConnection, *, schema: str = "penstock", page: int = PAGE
    ) -> None:
        self._connection = connection
        self._schema = checks.text("schema", schema)
        self._page = checks.count("page", page)

    def read(
        self, stream: str, *, start: int = 0, backwards: bool = False, limit: int | None = None
    ) -> AsyncGenerator[StoredMessage]:
        """The messages of a stream by version, as far as it goes now.

        Args:
            stream: its name. A stream that does not exist has no messages.
            start: the first version.
            backwards: begin with the last message, and end with the version `start`.
            limit: the most messages. Default: all.

        Suspends for each page.
        """
        return self._messages(
            StreamReading(
                self._schema, stream, start, backwards=backwards, limit=limit, page=self._page
            )
        )

    def scan(
        self,
        *,
        category: str | None = None,
        streams: str | Iterable[str] | None = None,
        start: ReadFrom = "beginning",
        backwards: bool = False,
        limit: int | None = None,
    ) -> AsyncGenerator[StoredMessage]:
        """The messages of several streams by position, up to where the log is complete now.

        Messages that an open transaction may still precede are left out; a later scan from the next
        position has them.

        Args:
            category: only streams of this category, the part of a name before the first `-`.
            streams: only these streams: a name or several; `*` in one stands for any text, as in
                `"order-*"`. Default: all streams.
            start: `"beginning"`, a position, or an aware time: messages appended at that time or
                later, by the server's clock.
            backwards: begin with the last message, and end at `start`.
            limit: the most messages. Default: all.

        Suspends for each page.
        """
        return self._messages(
            LogReading(
                self._schema,
                StreamSelection.of(category, streams),
                start,
                backwards=backwards,
                limit=limit,
                page=self._page,
                live=False,
            )
        )

    def follow(
        self,
        *,
        category: str | None = None,
        streams: str | Iterable[str] | None = None,
        start: ReadFrom = "next",
        limit: int | None = None,
        timeout: float | timedelta | None = None,
        poll: float | timedelta = POLL,
    ) -> AsyncGenerator[StoredMessage]:
        """As `scan`, but goes on with messages as they are appended.

        Remembers no position anywhere: a subscription does that.

        Args:
            category: as for `scan`.
            streams: as for `scan`.
            start: as for `scan`, and `"next"`, the default: messages appended after the first
                suspension. What was appended before a time is left out, and nothing appended
                later, whatever the server's clock shows then.
            limit: end after this number of messages. Default: none.
            timeout: seconds without a message after which the iteration ends. Default: never.
            poll: seconds between two looks at the log while there is nothing new. Default 0.25.

        Suspends for each page and until there are messages.
        """
        selection = StreamSelection.of(category, streams)
        reading = _live(self._schema, selection, start, limit, self._page)
        return self._messages(reading, _Patience(timeout, poll))

    async def _messages(
        self, reading: PagedReading, patience: _Patience | None = None
    ) -> AsyncGenerator[StoredMessage]:
        while True:
            if (query := reading.query()) is not None:
                for message in reading.take(await self._rows(query)):
                    if patience is not None:
                        patience.renew()
                    yield message
            elif patience is None or reading.is_over or (pause := patience.pause()) is None:
                return
            else:
                await LOOP_CLOCK.sleep(pause)

    async def _rows(self, query: Query) -> Rows:
        with read_told(self._schema):
            return await call_async(self._connection, query)

    def __repr__(self) -> str:
        return f"StreamReader({self._schema!r})"


class SyncStreamReader:
    """As `StreamReader`, on a connection that blocks: a `Connection` of psycopg 3, or a session or
    connection of SQLAlchemy (`Session`, `Connection`).
    """

    def __init__(
        self, connection: SyncUserConnection, *, schema: str = "penstock", page: int = PAGE
    ) -> None:
        self._connection = connection
        self._schema = checks.text("schema", schema)
        self._page = checks.count("page", page)

    def read(
        self, stream: str, *, start: int = 0, backwards: bool = False, limit: int | None = None
    ) -> Generator[StoredMessage]:
        """As `StreamReader.read`. Blocks for each page."""
        return self._messages(
            StreamReading(
                self._schema, stream, start, backwards=backwards, limit=limit, page=self._page
            )
        )

    def scan(
        self,
        *,
        category: str | None = None,
        streams: str | Iterable[str] | None = None,
        start: ReadFrom = "beginning",
        backwards: bool = False,
        limit: int | None = None,
    ) -> Generator[StoredMessage]:
        """As `StreamReader.scan`. Blocks for each page."""
        return self._messages(
            LogReading(
                self._schema,
                StreamSelection.of(category, streams),
                start,
                backwards=backwards,
                limit=limit,
                page=self._page,
                live=False,
            )
        )

    def follow(
        self,
        *,
        category: str | None = None,
        streams: str | Iterable[str] | None = None,
        start: ReadFrom = "next",
        limit: int | None = None,
        timeout: float | timedelta | None = None,
        poll: float | timedelta = POLL,
    ) -> Generator[StoredMessage]:
        """As `StreamReader.follow`. Blocks for each page and until there are messages."""
        selection = StreamSelection.of(category, streams)
        reading = _live(self._schema, selection, start, limit, self._page)
        return self._messages(reading, _Patience(timeout, poll))

    def _messages(
        self, reading: PagedReading, patience: _Patience | None = None
    ) -> Generator[StoredMessage]:
        while True:
            if (query := reading.query()) is not None:
                for message in reading.take(self._rows(query)):
                    if patience is not None:
                        patience.renew()
                    yield message
            elif patience is None or reading.is_over or (pause := patience.pause()) is None:
                return
            else:
                self._rows(sleep_query(self._schema, pause))

    def _rows(self, query: Query) -> Rows:
        with read_told(self._schema):
            return call_sync(self._connection, query)

    def __repr__(self) -> str:
        return f"SyncStreamReader({self._schema!r})"


class _Patience:
    """How long a live reading waits for messages."""

    def __init__(self, timeout: float | timedelta | None, poll: float | timedelta) -> None:
        timeout = checks.optional_seconds("timeout", timeout)
        self._most = math.inf if timeout is None else timeout
        self._poll = checks.seconds("poll", poll)
        self._left = self._most

    def renew(self) -> None:
        """Note a message."""
        self._left = self._most

    def pause(self) -> float | None:
        """Seconds until the next look; `None` if there is none."""
        if self._left <= 0:
            return None
        pause = min(self._poll, self._left)
        self._left -= pause
        return pause


def _live(
    schema: str,
    selection: StreamSelection,
    start: ReadFrom,
    limit: int | None,
    page: int,
) -> LogReading:
    return LogReading(
        schema,
        selection,
        start,
        backwards=False,
        limit=limit,
        page=page,
        live=True,
    )
