"""Asks the server about the queues of a schema."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from . import queue_sql as sql
from .queue_stats import (
    LaneStats,
    MemberStats,
    OpenTransaction,
    QueueStats,
    RangeStats,
    StoredQueue,
)
from .ring import gaps
from .settings import COLUMNS, QueueSettings

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .queue_stats import LaneState
    from .schema_access import SchemaAccess

STATES: tuple[LaneState, ...] = ("blocked", "parked", "leased", "ready", "delayed")
TABLES = ("job", "lane", "bell", "finished_job", "job_id", "queue_client", "queueing_lock")
QUEUES = (
    f"SELECT q.name, q.paused, q.created_at, {', '.join(COLUMNS)} FROM {{schema}}.queue q "  # noqa: S608
    "WHERE $1::text IS NULL OR q.name = $1 ORDER BY q.name"
)


class QueueQueries:
    """Looks that suspend for a statement each, and raise errors as `SchemaAccess` does."""

    def __init__(self, access: SchemaAccess) -> None:
        self._access = access

    async def queues(self, name: str | None = None) -> dict[str, StoredQueue]:
        """The queues with their settings, or this one."""
        return {
            name: StoredQueue(
                name,
                QueueSettings(**dict(zip(COLUMNS, values, strict=True))),
                is_paused,
                created_at,
            )
            for name, is_paused, created_at, *values in await self._access.rows(QUEUES, name)
        }

    async def stats(self, queue: StoredQueue, count_to: int) -> QueueStats | None:
        """What is in the queue; `None` if it is not there any more."""
        rows = await self._access.rows(sql.STATS, queue.name, count_to)
        if not rows:
            return None
        unowned: int | None = None
        if queue.settings.sticky and not queue.settings.ordering_required:
            spans = [(each.lo, each.hi) for each in await self.ranges(queue.name) if each.is_live]
            unowned = sum(hi - lo + 1 for lo, hi in gaps(spans))
        return replace(QueueStats(*rows[0]), unowned_slots=unowned)

    async def lanes(
        self, queue: StoredQueue, states: Sequence[LaneState], limit: int, count_to: int
    ) -> list[LaneStats]:
        """Lanes in these states, in their order."""
        keys: list[str] = []
        for state in states:
            if len(keys) < limit:
                rows = await self._access.rows(sql.LANE_KEYS[state], queue.name, limit - len(keys))
                keys += [row[0] for row in rows]
        return await self.lanes_of(queue, keys, count_to)

    async def lanes_of(
        self, queue: StoredQueue, keys: Sequence[str], count_to: int
    ) -> list[LaneStats]:
        """The lanes of these keys, as far as they have any."""
        is_one = queue.settings.ordering_required
        query = sql.LANES.replace("{of_lane}", "" if is_one else "AND j.key = l.key")
        query = query.replace(
            "{order}", "j.queue, j.place" if is_one else "j.queue, j.key, j.place"
        )
        rows = await self._access.rows(query, queue.name, [*keys], count_to)
        return [LaneStats(*row) for row in rows]

    async def key_without_lane(self, queue: str, key: str) -> tuple[bool, float | None]:
        """Whether the key has bells, and the seconds until its next delayed job is due."""
        ((bells, due_in),) = await self._access.rows(sql.KEY, queue, key)
        return bool(bells), due_in

    async def members(self, queue: str) -> list[MemberStats]:
        """The consumers that have not left."""
        return [MemberStats(*row) for row in await self._access.rows(sql.MEMBERS, queue)]

    async def ranges(self, queue: str, group: str | None = None) -> list[RangeStats]:
        """The ranges of slots, of one group or all."""
        return [RangeStats(*row) for row in await self._access.rows(sql.RANGES, queue, group)]

    async def transactions(self) -> tuple[OpenTransaction | None, OpenTransaction | None]:
        """The oldest open one that has written jobs, and the one with the oldest snapshot."""
        writer = await self._access.rows(sql.WRITER)
        snapshot = await self._access.rows(sql.SNAPSHOT)
        return _transaction(writer), _transaction(snapshot)

    async def tables(self) -> tuple[dict[str, int], dict[str, int]]:
        """The dead rows and the sizes of the tables of queues."""
        rows = await self._access.rows(sql.TABLES, self._access.schema, [*TABLES])
        return {row[0]: row[1] for row in rows}, {row[0]: row[2] for row in rows}


def _transaction(rows: Sequence[Any]) -> OpenTransaction | None:
    return OpenTransaction(*rows[0]) if rows else None
