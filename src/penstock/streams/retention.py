"""Deleting messages of a log that are no longer needed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from .._clients.postgres.streams.faults import read_told
from .._clients.postgres.streams.message import stream_name
from .._clients.postgres.streams.query import Query
from .._clients.postgres.streams.reading import LAST
from .._clients.postgres.streams.stored import aware, microseconds_of
from .._core import checks
from .._core.checks import bad
from .drivers import call_async

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

    from .drivers import AsyncUserConnection

BATCH = 1000
"""Default number of messages that one statement deletes."""

_TIME = "(timestamptz 'epoch' + CAST({%d} AS bigint) * interval '1 microsecond')"
_END = (
    # OFFSET 0 keeps the planner from walking the log by position until the time matches
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
"""The last version of a stream, and how many of its messages a subscription has not handled."""
_STREAM = (
    "SELECT r_deleted, r_kept, r_last FROM {schema}.delete_stream(CAST({0} AS text), "
    "CAST({1} AS bigint), CAST({2} AS bigint), CAST({3} AS int), CAST({4} AS boolean))"
)
_BY_OWNER = "connect as the role that installed the log; it alone deletes messages"


class Deleted(NamedTuple):
    """What a deletion has done."""

    deleted: int
    """The messages deleted."""
    kept: int
    """The messages that a subscription has not handled yet, and that were kept for it."""


class StreamRetention:
    """Deletes messages of the log of a schema, on a connection of its owner's.

    A message stays as long as a subscription has not handled it, unless the deletion is forced. A
    subscription whose messages were deleted all the same continues behind them. How many they are is
    counted for each slot, in the column `missed` of the table `subscription_slot`.

    Versions go on where they were: the log remembers the last one of a stream without messages. Ids
    of deleted messages are forgotten, so one of them can be appended again.

    Args:
        schema: the schema that `penstock pg install` has made the log in.

    Raises `ConfigError` for a bad name. Methods raise `RefusedError` where the log is not installed
    or the role may not delete, `ConfigError` for a bad argument or connection, and otherwise what
    the driver raises.
    """

    def __init__(self, schema: str = "penstock") -> None:
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
        """Delete messages from the beginning of the log on.

        Each batch is a transaction of its own, unless the connection is in one of yours. After a
        cancellation or an error each batch is deleted and counted as a whole or not at all, and a
        later call goes on.

        Args:
            connection: of asyncpg, an `AsyncConnection` of psycopg 3, or an `AsyncSession` or
                `AsyncConnection` of SQLAlchemy.
            older_than: delete messages appended before this aware time, by the server's clock.
            before: delete messages before this position. With both, those that match both.
            force: delete messages that subscriptions have not handled, too.
            batch: the most messages that one statement deletes. Default 1,000.
            on_batch: called after each batch, on the loop, with what this call has done so far. What
                it raises ends the call. A cancelled batch may be deleted without a call.

        Suspends for each batch.
        """
        if older_than is None and before is None:
            raise bad("older_than", older_than, "must be given, or before=, or both")
        time = None if older_than is None else microseconds_of(aware("older_than", older_than))
        end = LAST if before is None else checks.count("before", before, least=0) - 1
        checks.count("batch", batch)
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
        """Delete all messages of a stream, or none if a subscription has not handled one of them.

        That is checked before the first batch. Messages appended later stay. Batches are deleted by
        version, each in a transaction of its own, unless the connection is in one of yours. After a
        cancellation or an error the stream has its later messages, and a later call goes on. A call
        that is not forced also ends early if a subscription is reset to before one of the messages.

        Args:
            connection: as for `delete`.
            stream: the stream's name, which the log keeps together with its last version.
            force: delete them whatever subscriptions have handled.
            batch: as for `delete`.
            on_batch: as for `delete`.

        Suspends for the check and for each batch.
        """
        checks.count("batch", batch)
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
                continue  # it ends, unless a subscription has handled them meanwhile
            deleted, after = deleted + gone, last
            if on_batch is not None:
                on_batch(Deleted(deleted, 0))
        return Deleted(deleted, kept)

    async def _rows(
        self, connection: AsyncUserConnection, template: str, *values: str | int | None
    ) -> list[tuple[Any, ...]]:
        with read_told(self._schema, _BY_OWNER):
            found = await call_async(connection, Query(self._schema, template, values))
        return [tuple(row) for row in found]

    def __repr__(self) -> str:
        return f"StreamRetention({self._schema!r})"
