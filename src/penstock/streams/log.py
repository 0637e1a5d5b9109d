"""The log of streams of one schema, and appending to it on connections of the user's."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, cast

from .._clients.postgres.access import Access, need_asyncpg
from .._clients.postgres.connections import Connections
from .._clients.postgres.schema.opened import DEFAULT_SCHEMA, check_schema_name
from .._clients.postgres.streams.append import append_call
from .._clients.postgres.streams.message import NewMessage, expected_version, stream_name
from .._clients.postgres.streams.notifier import notifying
from .._core.checks import bad
from .drivers import call_async, call_sync

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterable

    from asyncpg import Pool

    from .._clients.postgres.access import PoolFactory
    from .._clients.postgres.streams.append import AppendCall
    from .._clients.postgres.streams.message import Appended
    from .._clients.postgres.streams.notifier import StreamNotifier
    from .drivers import AsyncUserConnection, SyncUserConnection

CLOSE_TIMEOUT = 5.0


class StreamLog:
    """The log of streams in one schema of a database.

    A description: it holds no connection, and may be shared by threads and processes.

    Args:
        schema: the schema that `penstock pg install` has made the log in.

    Raises `ConfigError` for a bad name.
    """

    def __init__(self, schema: str = DEFAULT_SCHEMA) -> None:
        self._schema = check_schema_name(schema)

    @property
    def schema(self) -> str:
        """The schema that the log is in."""
        return self._schema

    async def append(
        self,
        connection: AsyncUserConnection,
        stream: str,
        messages: NewMessage | Iterable[NewMessage],
        *,
        expected: int | None = None,
    ) -> list[Appended]:
        """Append messages to a stream, in the transaction that is open on the connection.

        They are in the log when that transaction commits, together with everything else in it, and
        never if it rolls back. Without a transaction they commit at once.

        Args:
            connection: yours: a connection of asyncpg (also of a pool) or of psycopg 3
                (`AsyncConnection`), or a session or connection of SQLAlchemy (`AsyncSession`,
                `AsyncConnection`).
            stream: the name of the stream, such as `"order-17"`; what is before the first `-` is its
                category. The stream begins with its first message.
            messages: one or several, appended in this order, with successive versions.
            expected: the version that the stream's last message must have, or `NO_STREAM` if there
                must be none; default: any. With `None`, appenders of one stream wait for one
                another, and none fails.

        Returns a row for each message. Messages with ids that are in the log already are returned as
        they are there (`is_new` is false), if all of them are there with the same contents, whatever
        is `expected`; so a retry appends nothing twice.

        Raises `VersionConflict` where the stream is at another version, `MessageIdConflict` where an
        id stands for another message, `ConfigError` for a bad argument, `RefusedError` where the log
        is not installed or the role may not append, and otherwise what the driver raises. Nothing
        is appended then. After an error of the server the transaction can only be rolled back, as
        after any other; a savepoint around the call limits that.

        Suspends for one round trip, and while another transaction that appends to the stream is
        open. Cancellation leaves the connection as any cancelled query of its driver does.
        """
        call = self._call(stream, messages, expected)
        try:
            return call.appended(await call_async(connection, call))
        except Exception as error:
            if (told := call.told(error)) is error:
                raise
            raise told  # noqa: B904  # it has its cause

    def append_sync(
        self,
        connection: SyncUserConnection,
        stream: str,
        messages: NewMessage | Iterable[NewMessage],
        *,
        expected: int | None = None,
    ) -> list[Appended]:
        """As `append`, on a connection that blocks: a `Connection` of psycopg 3, or a session or
        connection of SQLAlchemy (`Session`, `Connection`). Blocks the thread.
        """
        call = self._call(stream, messages, expected)
        try:
            return call.appended(call_sync(connection, call))
        except Exception as error:
            if (told := call.told(error)) is error:
                raise
            raise told  # noqa: B904  # it has its cause

    @asynccontextmanager
    async def notifier(
        self, dsn: str | None = None, *, pool: Pool[Any] | PoolFactory | None = None
    ) -> AsyncGenerator[StreamNotifier]:
        """Notify readers of what you append: call `appended()` of the notifier after a commit.

        Without it readers find new messages at their next poll. A `NOTIFY` within the transaction
        would do, too, but those serialise all commits of the database; the notifier sends one for
        many transactions, at most every 20 ms, on a connection of its own.

        Args:
            dsn: where to connect; default: asyncpg's environment variables. Never shown.
            pool: an asyncpg pool of the application's, or a function that makes one, instead.

        Entering suspends; it connects. Raises `ConfigError` for a refusal by the server, and
        `UnavailableError` if none answers. Leaving sends a notification that is due.
        """
        need_asyncpg()
        access = Access.of(
            dsn, pool=pool, close_pool=None, size=1, options=None, timeout=None, prepared="auto"
        )
        connections = await Connections.to(access, CLOSE_TIMEOUT)
        try:
            async with notifying(connections, self._schema) as notifier:
                yield notifier
        finally:
            await connections.close()

    def _call(
        self, stream: str, messages: NewMessage | Iterable[NewMessage], expected: int | None
    ) -> AppendCall:
        listed = _listed(messages)
        return append_call(self._schema, stream_name(stream), listed, expected_version(expected))

    def __repr__(self) -> str:
        return f"StreamLog({self._schema!r})"


def _listed(messages: object) -> list[NewMessage]:
    """The messages. Raises `ConfigError`."""
    if isinstance(messages, NewMessage):
        return [messages]
    rule, kind = "must be a NewMessage, or several of them", type(messages).__name__
    if isinstance(messages, (str, bytes, dict)):
        raise bad("messages", kind, rule)
    try:
        listed = list(cast("Iterable[object]", messages))
    except TypeError:
        raise bad("messages", kind, rule) from None
    if not listed:
        raise bad("messages", listed, "must be at least one NewMessage")
    for each in listed:
        if not isinstance(each, NewMessage):
            raise bad("messages", type(each).__name__, rule)
    made = cast("list[NewMessage]", listed)
    given = [each.id for each in made if each.id is not None]
    if len(set(given)) != len(given):
        twice = next(each for each in given if given.count(each) > 1)
        raise bad("id", str(twice), "is the id of two messages; each needs one of its own")
    return made
