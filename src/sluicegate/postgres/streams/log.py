"""The log of streams in a schema; appends to it on connections of the user."""

from __future__ import annotations

import json
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any, cast
from uuid import UUID

from ..._core.checks import bad, flag
from ..._core.classify import caused
from ..._core.clock import LOOP_CLOCK
from ..._core.errors import MessageIdConflict, RefusedError, VersionConflict
from ..._core.keywords import known_arguments
from ..._core.trace_context import NO_TRACE, caller_trace, unless_given
from ..client.access import Access, need_asyncpg
from ..client.connections import Connections
from ..client.names import channel_name
from ..client.notifications import Notifier
from ..records.access import NO_RIGHT, NOT_INSTALLED, UNIQUE
from ..records.values import time_of
from ..schema.opened import DEFAULT_SCHEMA, check_schema_name
from .drivers import Fault, Query, call_async, call_sync
from .message import Appended, NewMessage, expected_version, stream_name

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Generator, Iterable, Sequence

    from ..._core.clock import Clock
    from ..._core.trace_context import TraceHeaders
    from ..client.access import PostgresAccess
    from .drivers import AsyncUserConnection, SyncUserConnection

WRONG_VERSION = "PS001"
OTHER_CONTENTS = "PS002"
BAD_MESSAGE = "PS003"
"""SQLSTATEs of the schema's functions, as are the two above."""
ID_CONSTRAINT = "message_id"
_CALL = (
    "SELECT r_position, r_version, CAST(r_id AS text), "
    "CAST(extract(epoch FROM r_at) * 1000000 AS bigint), r_is_new "
    "FROM {schema}.append(CAST({0} AS text), CAST(CAST({1} AS text) AS jsonb), "
    "CAST({2} AS bigint))"
)


@known_arguments()
class StreamLog:
    """The log of streams in one schema of a database.

    Only a description: it has no connection, and may be shared by threads and processes.

    Args:
        schema: the schema in which `sluicegate pg install` created the log; default `"sluicegate"`.
        propagate: whether messages that are appended within a recorded OpenTelemetry span have its
            trace context (`traceparent`, `tracestate`) in their metadata, unless given there.

    Raises `ConfigError` for a bad argument.
    """

    def __init__(self, schema: str = DEFAULT_SCHEMA, *, propagate: bool = True) -> None:
        self._schema = check_schema_name(schema)
        self._propagate = flag("propagate", propagate)

    @property
    def schema(self) -> str:
        """The name of the schema that contains the log."""
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
            connection: your own: an asyncpg connection (pooled or not), a psycopg 3
                `AsyncConnection`, or an SQLAlchemy `AsyncSession` or `AsyncConnection`.
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
        cases nothing is appended. As after any server error, the transaction can then only
        be rolled back; a savepoint around the call limits this to the savepoint.

        Suspends for one round trip, and while another transaction that appends to the stream is
        open. Cancellation has the same effect on the connection as for any query of its driver.
        """
        call = self._call(stream, messages, expected)
        with _append_errors(call):
            return _decode(await call_async(connection, call))

    def append_sync(
        self,
        connection: SyncUserConnection,
        stream: str,
        messages: NewMessage | Iterable[NewMessage],
        *,
        expected: int | None = None,
    ) -> list[Appended]:
        """Like `append`, on a blocking connection. Blocks the thread.

        The connection is a psycopg 3 `Connection`, or an SQLAlchemy `Session` or `Connection`.
        """
        call = self._call(stream, messages, expected)
        with _append_errors(call):
            return _decode(call_sync(connection, call))

    @asynccontextmanager
    async def notifier(self, dsn: str | PostgresAccess) -> AsyncGenerator[StreamNotifier]:
        """Notify readers of appended messages: call `appended()` of the notifier after a commit.

        Without it, readers find new messages at their next poll. A `NOTIFY` in the transaction
        would also work, but would serialise all commits of the database; the notifier sends one for
        many transactions, at most every 20 ms, on its own connection.

        Args:
            dsn: where to connect, as for `PostgresSink`. Never shown.

        Entering connects, and suspends. Raises `ConfigError` if the server refuses the connection,
        and `UnavailableError` if no server responds. The exit sends a pending notification.
        """
        need_asyncpg()
        connections = await Connections.to(Access.of(dsn, size=1))
        try:
            notifier = StreamNotifier(connections, self._schema)
            try:
                yield notifier
            finally:
                await notifier.close()
        finally:
            await connections.close()

    def _call(
        self, stream: str, messages: NewMessage | Iterable[NewMessage], expected: int | None
    ) -> Query:
        listed = _check_messages(messages)
        trace = caller_trace() if self._propagate else NO_TRACE
        return append_call(
            self._schema, stream_name(stream), listed, expected_version(expected), trace
        )

    def __repr__(self) -> str:
        return f"StreamLog({self._schema!r})"


def _check_messages(messages: object) -> list[NewMessage]:
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


class StreamNotifier:
    """Notifies the readers of a log of committed messages. Created by `StreamLog.notifier`."""

    def __init__(self, connections: Connections, schema: str, *, clock: Clock = LOOP_CLOCK) -> None:
        self._notifier = Notifier(connections, channel_of(schema), readers_of(schema), clock=clock)

    def appended(self) -> None:
        """Notify readers soon. Call it after the commit, from any thread, any number of times.

        Does not suspend, and never raises.
        """
        self._notifier.soon()

    async def close(self) -> None:
        """Send a pending notification, and wait for it. Suspends; cancellation drops it."""
        await self._notifier.close()


def channel_of(schema: str) -> str:
    """Return the channel of a schema's log, for `LISTEN` (quoted) and `pg_notify`."""
    return channel_name("sluicegate", schema)


def readers_of(schema: str) -> str:
    """Return the name in log lines of the readers of a schema's log."""
    return f"readers of the streams in {schema!r}"


@contextmanager
def _append_errors(call: Query) -> Generator[None]:
    try:
        yield
    except Exception as error:
        if (found := append_error(call, error)) is error:
            raise
        raise found  # noqa: B904  # the cause is already set


def append_call(
    schema: str,
    stream: str,
    messages: Sequence[NewMessage],
    expected: int | None,
    trace: TraceHeaders = NO_TRACE,
) -> Query:
    """Return the statement that appends these messages, with a trace context."""
    listed = ",".join([_json(each, trace) for each in messages])
    return Query(schema, _CALL, (stream, f"[{listed}]", expected))


def _json(message: NewMessage, trace: TraceHeaders) -> str:
    given = "" if message.id is None else f'"id":"{message.id}",'
    return (
        f'{{{given}"type":{message.type_text},"data":{message.data_text},'
        f'"metadata":{_metadata(message, trace)}}}'
    )


def _metadata(message: NewMessage, trace: TraceHeaders) -> str:
    own = message.metadata_text
    added = unless_given(trace, map(str, message.metadata or ()))
    if not added:
        return own
    return json.dumps(added)[:-1] + ("}" if own == "{}" else f",{own[1:]}")


def _decode(rows: Iterable[Sequence[Any]]) -> list[Appended]:
    return [
        Appended(position, version, UUID(id_), time_of(at), is_new)
        for position, version, id_, at, is_new in rows
    ]


def append_error(call: Query, error: Exception) -> Exception:
    """Return the error to raise for a driver's error; any other is returned unchanged."""
    found = Fault.behind(error)
    if found is None:
        return error
    stream, _, expected = cast("tuple[str, str, int | None]", call.values)
    if found.state == WRONG_VERSION:
        before = -1 if expected is None else expected
        conflict = VersionConflict(stream, expected=before, actual=int(found.detail))
        return caused(conflict, error)
    if found.state == OTHER_CONTENTS or (
        found.state == UNIQUE and found.constraint == ID_CONSTRAINT
    ):
        return caused(MessageIdConflict(stream, found.message), error)
    if found.state == BAD_MESSAGE:
        return caused(bad("messages", "...", found.message), error)
    command = f"sluicegate pg install --schema {call.schema}"
    if found.state in NOT_INSTALLED:
        repair = f"{command}, in the database of this connection"
    elif found.state == NO_RIGHT:
        repair = f"{command} --append ROLE, as the owner of the schema"
    else:
        return error
    return caused(RefusedError(f"nothing appended: {found.message}", repair=repair), error)
