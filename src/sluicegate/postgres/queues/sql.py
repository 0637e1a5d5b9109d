"""The queries about a queue, in SQL. Each reads at most as many rows as it may count.

Ready keys are found by priority, and sticky ones by the 256 parts of the ring, to match the
indexes: a scan of all lanes would take time in proportion to the lanes in backoff.
"""

# ruff: noqa: S608 - the quoted name of the schema, and fragments of the library itself

from __future__ import annotations

NOW = "statement_timestamp()"
"""Can be used in index conditions, and is constant within a statement."""


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


_FREE = "t.lease IS NULL AND t.state = 0"
_LOOSE = "t.key IS NULL AND t.due IS NULL AND t.lease IS NULL AND t.state = 0"
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


_RUNG = (
    "SELECT j.at FROM (SELECT b.low FROM {schema}.bell b WHERE b.queue = $1 ORDER BY b.low LIMIT 100) r "
    "JOIN {schema}.job j ON j.queue = $1 AND j.place = r.low"
)
_READY_SINCE = f"""least(
    (SELECT min(r.due) FROM ({_free_lanes("<=", "1")}) r),
    (SELECT min(t.lease_until) FROM {{schema}}.lane t WHERE t.queue = $1 AND t.lease IS NOT NULL),
    (SELECT min(t.lease_until) FROM {{schema}}.job t WHERE t.queue = $1 AND t.lease IS NOT NULL),
    (SELECT min(r.at) FROM ({_RUNG}) r),
    (SELECT min(t.due) FROM {{schema}}.job t WHERE t.queue = $1 AND t.due IS NOT NULL),
    (SELECT min(r.at) FROM ({_ready_loose("1")}) r WHERE NOT q.ordering_required))"""
"""The time at which the longest waiting key became ready, or a future time."""
_EXPIRED = f"t.lease IS NOT NULL AND t.lease_until <= {NOW}"
_LIVE = f"t.lease IS NOT NULL AND t.lease_until > {NOW}"
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
