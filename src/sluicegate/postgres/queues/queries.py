"""Queries about the queues of a schema. Each reads at most as many rows as it may count.

Ready keys are found by priority, and sticky ones by the 256 parts of the ring, to match the
indexes: a scan of all lanes would take time in proportion to the lanes in backoff.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ..schema.contents import LOOKED_AT, LOST_JOBS, WITHOUT_LANE
from .report import QueueReport
from .ring import gaps
from .settings import COLUMNS, QueueSettings
from .stats import (
    LaneStats,
    MemberStats,
    OpenTransaction,
    QueueStats,
    RangeStats,
    ScheduleStats,
    StoredQueue,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..records.access import SchemaAccess
    from .stats import LaneState


# ruff: noqa: S608 - the quoted name of the schema, and fragments of the library itself


NOW = "statement_timestamp()"
"""Can be used in index conditions, and is constant within a statement."""
_FREE = "t.lease IS NULL AND t.state = 0"
_LOOSE = "t.key IS NULL AND t.due IS NULL AND t.lease IS NULL AND t.state = 0"
_RUNG = (
    "SELECT j.at FROM (SELECT b.low FROM {schema}.bell b WHERE b.queue = $1 ORDER BY b.low LIMIT 100) r "
    "JOIN {schema}.job j ON j.queue = $1 AND j.place = r.low"
)
_EXPIRED = f"t.lease IS NOT NULL AND t.lease_until <= {NOW}"
_LIVE = f"t.lease IS NOT NULL AND t.lease_until > {NOW}"
_TRANSACTION = (
    "a.pid, coalesce(a.application_name, ''), a.usename::text, a.state, "
    "extract(epoch FROM clock_timestamp() - a.xact_start)::float8"
)
WRITER = f"""
SELECT {_TRANSACTION} FROM pg_locks k JOIN pg_stat_activity a USING (pid)
WHERE k.locktype = 'relation' AND k.relation = '{{schema}}.job'::regclass AND k.granted
  AND k.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())
  AND k.mode = 'RowExclusiveLock' AND a.pid <> pg_backend_pid()
ORDER BY a.xact_start LIMIT 1
"""
"""The oldest open transaction that has written jobs."""
SNAPSHOT = f"""
SELECT {_TRANSACTION} FROM pg_stat_activity a
WHERE a.backend_xmin IS NOT NULL AND a.datname = current_database() AND a.pid <> pg_backend_pid()
  AND a.backend_type IS DISTINCT FROM 'autovacuum worker'
  AND NOT EXISTS (SELECT FROM pg_stat_progress_vacuum v WHERE v.pid = a.pid)
ORDER BY age(a.backend_xmin) DESC, a.xact_start LIMIT 1
"""
"""The transaction with the oldest snapshot, which keeps dead rows. A vacuum's own snapshot keeps none."""
TABLE_FIGURES = """
SELECT relname AS name, n_dead_tup AS dead, pg_total_relation_size(relid) AS size
FROM pg_stat_user_tables WHERE schemaname = $1 AND relname = ANY ($2::text[]::name[])
"""
STATES: tuple[LaneState, ...] = ("blocked", "parked", "leased", "ready", "delayed")
TABLES = ("job", "lane", "bell", "finished_job", "job_id", "queue_client", "queueing_lock")
QUEUES = (
    f"SELECT q.name, q.paused, q.created_at, {', '.join(COLUMNS)} FROM {{schema}}.queue q "
    "WHERE $1::text IS NULL OR q.name = $1 ORDER BY q.name"
)


def _seconds(since: str) -> str:
    # not the difference of the times: before PostgreSQL 17 it fails if one of them is infinite
    return f"(extract(epoch FROM {NOW}) - extract(epoch FROM {since}))::float8"


def _priorities(name: str, table: str, where: str) -> str:
    """Build a recursive query over the distinct priorities of an index."""
    row = f"SELECT max(t.priority) AS priority FROM {{schema}}.{table} t WHERE t.queue = $1 AND {where}"
    return (
        f"{name} AS ({row} UNION ALL SELECT ({row} AND t.priority < p.priority) "
        f"FROM {name} p WHERE p.priority IS NOT NULL)"
    )


_WITH = "WITH RECURSIVE " + ", ".join(
    (
        _priorities("p_plain", "lane", f"{_FREE} AND NOT t.sticky"),
        _priorities("p_sticky", "lane", f"{_FREE} AND t.sticky"),
        _priorities("p_loose", "job", _LOOSE),
    )
)


def _free_lanes(sign: str, most: str) -> str:
    """Select lanes without a lease that are due now, or later; the first due ones of each priority."""
    where = f"t.queue = $1 AND {_FREE} AND t.priority = p.priority AND t.due {sign} {NOW}"
    return (
        f"SELECT f.key, f.due FROM p_plain p CROSS JOIN LATERAL (SELECT t.key, t.due "
        f"FROM {{schema}}.lane t WHERE {where} AND NOT t.sticky ORDER BY t.due LIMIT {most}) f "
        "UNION ALL SELECT f.key, f.due FROM p_sticky p CROSS JOIN generate_series(0, 255) AS r (part) "
        "CROSS JOIN LATERAL (SELECT t.key, t.due FROM {schema}.lane t "
        f"WHERE {where} AND t.sticky AND (t.slot >> 8) = r.part ORDER BY t.due LIMIT {most}) f"
    )


def _count(table: str, where: str) -> str:
    return (
        f"(SELECT count(*) FROM (SELECT FROM {{schema}}.{table} t "
        f"WHERE t.queue = $1 AND {where} LIMIT $2) c)"
    )


def _ready_loose(most: str) -> str:
    """Select the enqueue times of ready jobs without a key; the first ones of each priority."""
    return (
        "SELECT f.at FROM p_loose p CROSS JOIN LATERAL (SELECT t.at FROM {schema}.job t "
        f"WHERE t.queue = $1 AND {_LOOSE} AND t.priority = p.priority ORDER BY t.place LIMIT {most}) f"
    )


_READY_SINCE = f"""least(
    (SELECT min(r.due) FROM ({_free_lanes("<=", "1")}) r),
    (SELECT min(t.lease_until) FROM {{schema}}.lane t WHERE t.queue = $1 AND t.lease IS NOT NULL),
    (SELECT min(t.lease_until) FROM {{schema}}.job t WHERE t.queue = $1 AND t.lease IS NOT NULL),
    (SELECT min(r.at) FROM ({_RUNG}) r),
    (SELECT min(t.due) FROM {{schema}}.job t WHERE t.queue = $1 AND t.due IS NOT NULL),
    (SELECT min(r.at) FROM ({_ready_loose("1")}) r WHERE NOT q.ordering_required))"""
"""The time at which the longest waiting key became ready, or a future time."""
STATS = f"""
{_WITH}
SELECT q.paused, {_count("job", "true")} AS jobs,
  least($2, (SELECT count(*) FROM (SELECT FROM ({_free_lanes("<=", "$2")}) r LIMIT $2) c)
    + {_count("lane", _EXPIRED)}
    + (SELECT count(*) FROM (SELECT FROM ({_ready_loose("$2")}) r
       WHERE NOT q.ordering_required LIMIT $2) c)
    + {_count("job", _EXPIRED)}) AS ready,
  {_count("job", f"t.due IS NOT NULL AND t.due > {NOW}")} AS delayed,
  least($2, {_count("lane", _LIVE)} + {_count("job", _LIVE)}) AS leased,
  least($2, {_count("lane", "t.state <> 0 AND t.state = 1")}
    + {_count("job", "t.state <> 0 AND t.state = 1")}) AS blocked,
  least($2, {_count("lane", "t.state <> 0 AND t.state = 2")}
    + {_count("job", "t.state <> 0 AND t.state = 2")}) AS parked,
  {_count("finished_job", "t.outcome = 'dead'")} AS dead,
  {_count("bell", "true")} AS bells,
  (SELECT count(*) FROM {{schema}}.queue_member m
   WHERE m.queue = $1 AND m.live_until > {NOW}) AS members,
  greatest(0, {_seconds(_READY_SINCE)}) AS oldest,
  (SELECT -{_seconds("min(t.due)")} FROM {{schema}}.job t
   WHERE t.queue = $1 AND t.due > {NOW}) AS next_due
FROM {{schema}}.queue q WHERE q.name = $1
"""
LANE_KEYS = {
    "blocked": "SELECT t.key FROM {schema}.lane t WHERE t.queue = $1 AND t.state <> 0 AND t.state = 1 ORDER BY t.key LIMIT $2",
    "parked": "SELECT t.key FROM {schema}.lane t WHERE t.queue = $1 AND t.state <> 0 AND t.state = 2 ORDER BY t.key LIMIT $2",
    "leased": "SELECT t.key FROM {schema}.lane t WHERE t.queue = $1 AND t.lease IS NOT NULL AND t.state = 0 ORDER BY t.lease_until LIMIT $2",
    "ready": f"{_WITH} SELECT r.key FROM ({_free_lanes('<=', '$2')}) r ORDER BY r.due, r.key LIMIT $2",
    "delayed": f"{_WITH} SELECT r.key FROM ({_free_lanes('>', '$2')}) r ORDER BY r.due, r.key LIMIT $2",
}
"""The keys of lanes in each state."""
LANES = f"""
SELECT l.key, l.slot, CASE l.state WHEN 1 THEN 'blocked' WHEN 2 THEN 'parked' ELSE
    CASE WHEN l.lease IS NOT NULL THEN 'leased' WHEN l.due > {NOW} THEN 'delayed' ELSE 'ready' END
  END AS state,
  c.jobs, f.place, coalesce({_seconds("f.at")}, 0), l.attempts, l.priority, l.grp, l.owner,
  -{_seconds("l.lease_until")}, -{_seconds("l.due")}, {_seconds("l.stopped_at")}, l.reason
FROM unnest($2::text[]) WITH ORDINALITY AS k (key, n)
JOIN {{schema}}.lane l ON l.queue = $1 AND l.key = k.key
LEFT JOIN LATERAL (
  SELECT j.place, j.at FROM {{schema}}.job j
  WHERE j.queue = $1 {{of_lane}} AND j.due IS NULL AND j.place > least(l.after, l.low - 1)
  ORDER BY {{order}} LIMIT 1) f ON true
CROSS JOIN LATERAL (
  SELECT count(*) AS jobs FROM (
    SELECT FROM {{schema}}.job j
    WHERE j.queue = $1 {{of_lane}} AND j.due IS NULL AND j.place > least(l.after, l.low - 1)
    LIMIT $3) n) c
ORDER BY k.n
"""
KEY = f"""
SELECT (SELECT count(*) FROM (
    SELECT FROM {{schema}}.bell b WHERE b.queue = $1 AND b.key = $2 LIMIT 1) b) AS bells,
  (SELECT count(*) FROM (
    SELECT FROM {{schema}}.job j
    WHERE j.queue = $1 AND j.key = $2 AND j.due IS NULL LIMIT 1) j) AS jobs,
  (SELECT -{_seconds("min(j.due)")} FROM {{schema}}.job j
   WHERE j.queue = $1 AND j.due IS NOT NULL AND j.key = $2) AS due_in
"""
"""Facts about a key without a lane."""
MEMBERS = f"""
SELECT m.grp, m.consumer, {_seconds("m.seen_at")}, m.live_until > {NOW}
FROM {{schema}}.queue_member m WHERE m.queue = $1 ORDER BY m.grp, m.consumer
"""
RANGES = f"""
SELECT r.grp, r.lo, r.hi, r.consumer, r.draining, coalesce(m.live_until > {NOW}, false),
  {_seconds("m.seen_at")}, d.owner, d.left_s
FROM {{schema}}.ring_range r
LEFT JOIN {{schema}}.queue_member m USING (queue, grp, consumer)
LEFT JOIN LATERAL (
  SELECT l.owner, -{_seconds("l.lease_until")} AS left_s FROM {{schema}}.lane l
  WHERE r.draining AND l.queue = r.queue AND l.lease IS NOT NULL AND l.sticky
    AND l.slot BETWEEN r.lo AND r.hi AND l.lease_until > {NOW}
    AND l.grp = r.grp AND l.owner <> r.consumer
  ORDER BY l.lease_until DESC LIMIT 1) d ON true
WHERE r.queue = $1 AND ($2::text IS NULL OR r.grp = $2) ORDER BY r.grp, r.lo
"""


SCHEDULES = """
SELECT s.name, s.paused, extract(epoch FROM s.next_at - {schema}.schedule_now())::float8
FROM {schema}.schedule s WHERE s.queue = $1 ORDER BY s.paused, s.next_at, s.name LIMIT 1000
"""


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

    async def why_no_lane(self, queue: StoredQueue, key: str) -> str:
        """Return why a key has no lane."""
        if queue.settings.ordering_required and key:
            return "all jobs are in one lane, that of the empty key"
        ((has_bell, has_job, due_in),) = await self._access.rows(KEY, queue.name, key)
        if has_bell:
            return "it waits in a bell that the next claims merge into a lane"
        if has_job:
            return LOST_JOBS % 1
        if due_in is not None:
            return f"its next job is delayed, and due in {due_in:.0f} s"
        return "it has no job in committed transactions"

    async def report(
        self, queue: StoredQueue, stats: QueueStats, lanes: Sequence[LaneStats], key: str | None
    ) -> QueueReport:
        """Return the reasons why these lanes of a queue wait, and why a key has none of them."""
        why = None if key is None or lanes else await self.why_no_lane(queue, key)
        writer, snapshot = await self.transactions()
        members, ranges = await self.members(queue.name), await self.ranges(queue.name)
        schedules = [ScheduleStats(*row) for row in await self._access.rows(SCHEDULES, queue.name)]
        found = (tuple(lanes), tuple(members), tuple(ranges))
        return QueueReport(queue, stats, *found, writer, snapshot, key, why, tuple(schedules))

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
