"""Deletion of messages that are no longer needed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from ..._core import checks
from ..._core.checks import bad
from ..records.values import aware, microseconds_of
from .drivers import Query, call_async, read_errors
from .message import stream_name
from .reading import LAST

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

    from .drivers import AsyncUserConnection

BATCH = 1000
"""Default number of messages that one statement deletes."""

_TIME = "(timestamptz 'epoch' + CAST({%d} AS bigint) * interval '1 microsecond')"
_END = (
    # OFFSET 0 prevents the planner from scanning the log by position until the time matches
    "SELECT coalesce(max(f.position), 0) FROM (SELECT m.position FROM {schema}.message m "  # noqa: S608
    f"WHERE m.at < {_TIME % 0} OFFSET 0) f"
)
_MESSAGES = (
    "SELECT r_deleted, r_kept, r_last FROM {schema}.delete_messages("  # noqa: S608
    f"CAST({{0}} AS bigint), CAST({{1}} AS bigint), {_TIME % 2}, "
    "CAST({3} AS int), CAST({4} AS boolean))"
)
_OF_STREAM = (
    "WITH w AS MATERIALIZED (SELECT CAST({0} AS text) AS stream), n AS MATERIALIZED ("
    "SELECT min(s.position) AS first FROM w "
    "JOIN {schema}.subscription_slot s ON s.slot = {schema}.slot_of(w.stream) "
    "JOIN {schema}.subscription u ON u.name = s.name "
    "WHERE {schema}.is_selected(u.selection, w.stream)) "
    "SELECT coalesce(max(m.version), -1), count(*) FILTER (WHERE m.position >= n.first) "
    "FROM w JOIN {schema}.message m ON m.stream = w.stream CROSS JOIN n"
)
"""The last version of a stream, and the number of its messages not handled by a subscription."""
_STREAM = (
    "SELECT r_deleted, r_kept, r_last FROM {schema}.delete_stream(CAST({0} AS text), "
    "CAST({1} AS bigint), CAST({2} AS bigint), CAST({3} AS int), CAST({4} AS boolean))"
)
_BY_OWNER = "connect as the role that installed the log; only that role deletes messages"


class Deleted(NamedTuple):
    """The result of a deletion."""

    deleted: int
    """Number of deleted messages."""
    kept: int
    """Number of messages that were kept because a subscription has not handled them."""


class StreamRetention:
    """Deletes messages of the log of a schema, on a connection of its owner.

    A message is kept as long as a subscription has not handled it, unless the deletion is forced. A
    subscription whose messages were deleted anyway continues after them. Their number is counted
    for each slot, in the column `missed` of the table `subscription_slot`.

    Versions continue: the log keeps the last version of a stream without messages. Ids of deleted
    messages are not kept, so they can be appended again.

    Args:
        schema: the schema in which `sluicegate pg install` created the log; default `"sluicegate"`.

    Raises `ConfigError` for a bad name. Methods raise `RefusedError` if the log is not installed or
    the role may not delete, `ConfigError` for a bad argument or connection, and otherwise the
    driver's errors.
    """

    def __init__(self, schema: str = "sluicegate") -> None:
        self._schema = checks.text("schema", schema)

    async def delete(
        self,
        connection: AsyncUserConnection,
        *,
        older_than: datetime | None = None,
        before: int | None = None,
        force: bool = False,
        batch: int = BATCH,
        on_batch: Callable[[Deleted], object] | None = None,
    ) -> Deleted:
        """Delete messages from the beginning of the log; return the counts of deleted and kept
        ones.

        Each batch is a separate transaction, unless the connection is already in a transaction.
        After a cancellation or an error, each batch is deleted and counted completely or not at
        all, and a later call continues.

        Args:
            connection: your own: an asyncpg connection, a psycopg 3 `AsyncConnection`, or an
                SQLAlchemy `AsyncSession` or `AsyncConnection`.
            older_than: delete messages appended before this time (a `datetime` with a time zone),
                by the server's clock.
            before: delete messages before this position. With both arguments, messages that match
                both.
            force: also delete messages that subscriptions have not handled.
            batch: maximum number of messages deleted by one statement. Default 1,000.
            on_batch: called after each batch, on the loop, with the result of this call so far. An
                exception ends the call. A cancelled batch may be deleted without a call.

        Raises `ConfigError` without `older_than` and `before`. Suspends for each batch.
        """
        if older_than is None and before is None:
            raise bad("older_than", older_than, "must be given, or before=, or both")
        time = None if older_than is None else microseconds_of(aware("older_than", older_than))
        end = LAST if before is None else checks.count("before", before, least=0) - 1
        checks.count("batch", batch)
        checks.flag("force", force)
        if time is not None:
            ((oldest,),) = await self._rows(connection, _END, time)
            end = min(end, oldest)
        deleted = kept = after = 0
        while after < end:
            values = (after, end, time, batch, force)
            ((gone, left, last),) = await self._rows(connection, _MESSAGES, *values)
            if last is None:
                break
            deleted, kept, after = deleted + gone, kept + left, last
            if on_batch is not None:
                on_batch(Deleted(deleted, kept))
        return Deleted(deleted, kept)

    async def delete_stream(
        self,
        connection: AsyncUserConnection,
        stream: str,
        *,
        force: bool = False,
        batch: int = BATCH,
        on_batch: Callable[[Deleted], object] | None = None,
    ) -> Deleted:
        """Delete all messages of a stream, or none if a subscription has not handled all of them.

        This is checked before the first batch. Messages appended later are kept. Batches are
        deleted by version, each in a separate transaction, unless the connection is already in a
        transaction. After a cancellation or an error, the later messages of the stream remain, and
        a later call continues. Without `force`, a call also ends early if a subscription is reset
        to before one of the messages.

        Args:
            connection: as for `delete`.
            stream: the stream's name, which the log keeps with its last version.
            force: delete them even if subscriptions have not handled them.
            batch: as for `delete`.
            on_batch: as for `delete`.

        Suspends for the check and for each batch.
        """
        checks.count("batch", batch)
        checks.flag("force", force)
        name = stream_name(stream)
        ((end, needed),) = await self._rows(connection, _OF_STREAM, name)
        kept = 0 if force else needed
        deleted, after = 0, -1
        while after < end and not kept:
            values = (name, after, end, batch, force)
            ((gone, left, last),) = await self._rows(connection, _STREAM, *values)
            if last is None:
                break
            if left:
                ((_, kept),) = await self._rows(connection, _OF_STREAM, name)
                continue  # the call ends, unless a subscription has handled them in the meantime
            deleted, after = deleted + gone, last
            if on_batch is not None:
                on_batch(Deleted(deleted, 0))
        return Deleted(deleted, kept)

    async def _rows(
        self, connection: AsyncUserConnection, template: str, *values: str | int | None
    ) -> list[tuple[Any, ...]]:
        with read_errors(self._schema, _BY_OWNER):
            found = await call_async(connection, Query(self._schema, template, values))
        return [tuple(row) for row in found]

    def __repr__(self) -> str:
        return f"StreamRetention({self._schema!r})"
