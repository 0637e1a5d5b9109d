"""Queries about the queues of a schema."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ..schema.queue_contents import LOOKED_AT, WITHOUT_LANE
from .sql import KEY, LANE_KEYS, LANES, MEMBERS, RANGES, SNAPSHOT, STATS, TABLE_FIGURES, WRITER
from .ring import gaps
from .settings import COLUMNS, QueueSettings
from .stats import LaneStats, MemberStats, OpenTransaction, QueueStats, RangeStats, StoredQueue

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..records.access import SchemaAccess
    from .stats import LaneState

STATES: tuple[LaneState, ...] = ("blocked", "parked", "leased", "ready", "delayed")
TABLES = ("job", "lane", "bell", "finished_job", "job_id", "queue_client", "queueing_lock")
QUEUES = (
    f"SELECT q.name, q.paused, q.created_at, {', '.join(COLUMNS)} FROM {{schema}}.queue q "  # noqa: S608
    "WHERE $1::text IS NULL OR q.name = $1 ORDER BY q.name"
)


class QueueQueries:
    """Queries of one statement each. They suspend, and raise the errors of `SchemaAccess`."""

    def __init__(self, access: SchemaAccess) -> None:
        self._access = access

    async def queues(self, name: str | None = None) -> dict[str, StoredQueue]:
        """Return all queues with their settings, or only this one."""
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
        """Return the figures of a queue; `None` if it no longer exists."""
        rows = await self._access.rows(STATS, queue.name, count_to)
        if not rows:
            return None
        unowned: int | None = None
        if queue.settings.sticky and not queue.settings.ordering_required:
            spans = [(each.lo, each.hi) for each in await self.ranges(queue.name) if each.is_live]
            unowned = sum(hi - lo + 1 for lo, hi in gaps(spans))
        stats = QueueStats(*rows[0])
        found = stats.jobs and await self._access.rows(WITHOUT_LANE, LOOKED_AT, queue.name)
        lost = sum(row[1] for row in found or ())
        return replace(stats, unowned_slots=unowned, without_lane=lost)

    async def lanes(
        self, queue: StoredQueue, states: Sequence[LaneState], limit: int, count_to: int
    ) -> list[LaneStats]:
        """Return the lanes in these states, in the order of the states."""
        keys: list[str] = []
        for state in states:
            if len(keys) < limit:
                rows = await self._access.rows(LANE_KEYS[state], queue.name, limit - len(keys))
                keys += [row[0] for row in rows]
        return await self.lanes_of(queue, keys, count_to)

    async def lanes_of(
        self, queue: StoredQueue, keys: Sequence[str], count_to: int
    ) -> list[LaneStats]:
        """Return the existing lanes of these keys."""
        is_one = queue.settings.ordering_required
        query = LANES.replace("{of_lane}", "" if is_one else "AND j.key = l.key")
        query = query.replace(
            "{order}", "j.queue, j.place" if is_one else "j.queue, j.key, j.place"
        )
        rows = await self._access.rows(query, queue.name, [*keys], count_to)
        return [LaneStats(*row) for row in rows]

    async def key_without_lane(self, queue: str, key: str) -> tuple[bool, bool, float | None]:
        """Return whether the key has bells, whether it has jobs that are due, and the seconds until
        its next delayed job is due.
        """
        ((bells, jobs, due_in),) = await self._access.rows(KEY, queue, key)
        return bool(bells), bool(jobs), due_in

    async def members(self, queue: str) -> list[MemberStats]:
        """Return the consumers that have not left."""
        return [MemberStats(*row) for row in await self._access.rows(MEMBERS, queue)]

    async def ranges(self, queue: str, group: str | None = None) -> list[RangeStats]:
        """Return the ranges of slots, of one group or of all."""
        return [RangeStats(*row) for row in await self._access.rows(RANGES, queue, group)]

    async def transactions(self) -> tuple[OpenTransaction | None, OpenTransaction | None]:
        """Return the oldest open writer of jobs, and the transaction with the oldest snapshot."""
        writer = await self._access.rows(WRITER)
        snapshot = await self._access.rows(SNAPSHOT)
        return _transaction(writer), _transaction(snapshot)

    async def tables(self) -> tuple[dict[str, int], dict[str, int]]:
        """Return the dead rows and the sizes of the queue tables."""
        rows = await self._access.rows(TABLE_FIGURES, self._access.schema, [*TABLES])
        return {row[0]: row[1] for row in rows}, {row[0]: row[2] for row in rows}


def _transaction(rows: Sequence[Any]) -> OpenTransaction | None:
    return OpenTransaction(*rows[0]) if rows else None
