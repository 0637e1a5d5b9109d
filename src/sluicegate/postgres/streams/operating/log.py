"""The log of streams in a schema; appends to it on connections of the user."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, cast

from ...._core.checks import bad
from ...._core.keywords import known_arguments
from ...client.access import Access, need_asyncpg
from ...client.connections import Connections
from ...schema.opened import DEFAULT_SCHEMA, check_schema_name
from ..messages.append import append_call
from ..messages.message import NewMessage, expected_version, stream_name
from ..messages.notifier import notifying
from .drivers import call_async, call_sync

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterable

    from asyncpg import Pool

    from ...client.access import PoolFactory, PostgresAccess
    from ..messages.append import AppendCall
    from ..messages.message import Appended
    from ..messages.notifier import StreamNotifier
    from .drivers import AsyncUserConnection, SyncUserConnection

CLOSE_TIMEOUT = 5.0


@known_arguments()
class StreamLog:
    """The log of streams in one schema of a database.

    Only a description: it has no connection, and may be shared by threads and processes.

    Args:
        schema: the schema in which `sluicegate pg install` created the log.

    Raises `ConfigError` for a bad name.
    """

    def __init__(self, schema: str = DEFAULT_SCHEMA) -> None:
        self._schema = check_schema_name(schema)

    @property
    def schema(self) -> str:
        """The schema of the log."""
        return self._schema

    async def append(
        self,
        connection: AsyncUserConnection,
        stream: str,
        messages: NewMessage | Iterable[NewMessage],
        *,
        expected: int | None = None,
    ) -> list[Appended]:
        """Append messages to a stream, in the open transaction of the connection.

        They are in the log when that transaction commits, together with its other changes, and
        never if it rolls back. Without a transaction they are committed immediately.

        Args:
            connection: yours: a connection of asyncpg (also of a pool) or of psycopg 3
                (`AsyncConnection`), or a session or connection of SQLAlchemy (`AsyncSession`,
                `AsyncConnection`).
            stream: the name of the stream, such as `"order-17"`; the part before the first `-` is
                its category. The first message creates the stream.
            messages: one or several, appended in this order, with successive versions.
            expected: the version that the stream's last message must have, or `NO_STREAM` if the
                stream must not exist; default: any. With `None`, concurrent appends to one stream
                wait for each other, and none fails.

        Returns a row for each message. If all messages, by their ids, are already in the log with
        the same contents, the stored ones are returned (`is_new` is false), regardless of
        `expected`; so a retry appends nothing twice.

        Raises `VersionConflict` if the stream is at another version, `MessageIdConflict` if an id
        belongs to another message, `ConfigError` for a bad argument, `RefusedError` if the log is
        not installed or the role may not append, and otherwise the driver's errors. In all these
        cases nothing is appended. As after any error of the server, the transaction can then only
        be rolled back; a savepoint around the call limits this to the savepoint.

        Suspends for one round trip, and while another transaction that appends to the stream is
        open. Cancellation has the same effect on the connection as for any query of its driver.
        """
        call = self._call(stream, messages, expected)
        try:
            return call.appended(await call_async(connection, call))
        except Exception as error:
            if (told := call.told(error)) is error:
                raise
            raise told  # noqa: B904  # the cause is already set

    def append_sync(
        self,
        connection: SyncUserConnection,
        stream: str,
        messages: NewMessage | Iterable[NewMessage],
        *,
        expected: int | None = None,
    ) -> list[Appended]:
        """As `append`, on a blocking connection. Blocks the thread.

        The connection is a `Connection` of psycopg 3, or a `Session` or `Connection` of SQLAlchemy.
        """
        call = self._call(stream, messages, expected)
        try:
            return call.appended(call_sync(connection, call))
        except Exception as error:
            if (told := call.told(error)) is error:
                raise
            raise told  # noqa: B904  # the cause is already set

    @asynccontextmanager
    async def notifier(
        self,
        dsn: str | PostgresAccess | None = None,
        *,
        pool: Pool[Any] | PoolFactory | None = None,
    ) -> AsyncGenerator[StreamNotifier]:
        """Notify readers of appended messages: call `appended()` of the notifier after a commit.

        Without it, readers find new messages at their next poll. A `NOTIFY` in the transaction
        would also work, but would serialise all commits of the database; the notifier sends one for
        many transactions, at most every 20 ms, on its own connection.

        Args:
            dsn: where to connect, as for `PostgresSink`. Never shown.
            pool: an asyncpg pool of the application, or a function that creates one, instead of
                `dsn`.

        Entering connects, and suspends. Raises `ConfigError` if the server refuses the connection,
        and `UnavailableError` if no server answers. The exit sends a pending notification.
        """
        need_asyncpg()
        access = Access.of(dsn, pool=pool, close_pool=None, size=1, timeout=None, prepared="auto")
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
    """Return the messages as a list. Raises `ConfigError`."""
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
        raise bad("id", str(twice), "is the id of two messages; each needs its own id")
    return made
