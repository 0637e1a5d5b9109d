"""Checks of the schema's contents: sequences, and jobs that no claim finds.

1. A partly restored dump may contain rows without the sequence. Then positions and places are
   assigned twice. (Lease numbers are not, since they begin with the time.)
2. A key with jobs has a lane that is read from before the first job, or a bell that causes this.
   Inserts without the trigger leave jobs with neither. The trigger does not fire in a session with
   `session_replication_role = replica`, since a logical replica receives lanes and bells as rows.
3. At most 1,000 keys of a queue are checked by name, and the keys of its 1,000 oldest jobs.
"""

# ruff: noqa: S608  # names in statements are quoted

from __future__ import annotations

from typing import TYPE_CHECKING

from ..client.names import literal
from .objects import SchemaProblem

if TYPE_CHECKING:
    from .objects import Catalog
    from .opened import AnyConnection, LogSchema


_READABLE = """
SELECT bool_and(has_table_privilege(oid, 'SELECT')) FROM pg_class
WHERE relnamespace = $1::text::regnamespace AND relname = ANY($2::text[])
"""
_LAST_POSITION = """
SELECT coalesce((SELECT max(position) FROM {schema}.message), 0) AS stored,
  (SELECT last_value - (NOT is_called)::int FROM {schema}.position) AS last
"""
_LOG = ("message", "position")
QUEUES = ("queue", "job", "lane", "bell", "finished_job", "queueing_lock", "job_place")
"""The tables that the role must be able to read."""
_HIGHEST = """SELECT max(p.place) FROM {schema}.queue q CROSS JOIN LATERAL (
      (SELECT j.place FROM {schema}.job j WHERE j.queue = q.name ORDER BY j.place DESC LIMIT 1)
      UNION ALL
      (SELECT f.place FROM {schema}.finished_job f WHERE f.queue = q.name
       ORDER BY f.place DESC LIMIT 1)) p"""
_LAST_PLACE = f"""
SELECT (SELECT last_value - (NOT is_called)::int FROM {{schema}}.job_place) AS last,
  coalesce(({_HIGHEST}), 0) AS stored
"""
WITHOUT_LANE = """
SELECT q.name, count(*) AS keys, min(k.key) AS key
FROM {schema}.queue q
CROSS JOIN LATERAL (
  WITH RECURSIVE by_name AS (
    (SELECT j.key, j.place FROM {schema}.job j
     WHERE j.queue = q.name AND j.key IS NOT NULL AND j.due IS NULL AND NOT q.ordering_required
     ORDER BY j.queue, j.key, j.place LIMIT 1)
    UNION ALL
    SELECT n.key, n.place FROM by_name b CROSS JOIN LATERAL (
      SELECT j.key, j.place FROM {schema}.job j
      WHERE j.queue = q.name AND j.key > b.key AND j.due IS NULL
      ORDER BY j.queue, j.key, j.place LIMIT 1) n
  )
  (SELECT b.key, b.place FROM by_name b LIMIT $1)
  UNION
  SELECT l.key, min(l.place) FROM (
    SELECT CASE WHEN q.ordering_required THEN '' ELSE j.key END AS key, j.place, j.due
    FROM {schema}.job j WHERE j.queue = q.name ORDER BY j.queue, j.place LIMIT $1) l
  WHERE l.key IS NOT NULL AND l.due IS NULL GROUP BY l.key
) k
LEFT JOIN {schema}.lane l ON l.queue = q.name AND l.key = k.key
WHERE (l.key IS NULL OR l.after >= k.place AND (l.low <= k.place) IS NOT TRUE)
  AND NOT EXISTS (
    SELECT FROM {schema}.bell b
    WHERE b.queue = q.name AND b.key = k.key AND (l.key IS NULL OR b.low <= k.place))
  AND ($2::text IS NULL OR q.name = $2)
GROUP BY q.name ORDER BY q.name
"""
"""The number of such keys, by queue, of all queues or of one, and the first of them. $1 limits the keys
that are checked by name, and the jobs that are checked by age.
"""
LOST_JOBS = (
    "jobs of %d keys or more have neither a lane nor a bell, so no claim finds them, as after inserts "
    "without the trigger (session_replication_role=replica); `sluicegate pg check` shows the repair"
)
LOOKED_AT = 1000


async def problems_of_contents(
    con: AnyConnection, schema: LogSchema, catalog: Catalog
) -> list[SchemaProblem]:
    """Return the problems of sequences, and of jobs that no claim finds."""
    here = {name for _, name in catalog.objects}
    problems: list[SchemaProblem] = []
    unread: list[str] = []
    for things, relations, find in (
        ("messages", _LOG, _problems_of_log),
        ("jobs", QUEUES, problems_of_queues),
    ):
        if not here.issuperset(relations):
            continue
        if await con.fetchval(_READABLE, schema.sql, [*relations]):
            problems += await find(con, schema)
        else:
            unread.append(things)
    if unread:
        text = (
            f"the role may not read {' and '.join(unread)}, so neither they nor their sequences "
            "were checked"
        )
        problems.append(SchemaProblem("not-readable", text, is_note=True))
    return problems


async def _problems_of_log(con: AnyConnection, schema: LogSchema) -> list[SchemaProblem]:
    row = await con.fetchrow(_LAST_POSITION.format(schema=schema.sql))
    assert row is not None  # always one row
    if row["last"] >= row["stored"]:
        return []
    return [_position_behind(schema, row["last"], row["stored"])]


def _position_behind(schema: LogSchema, last: int, stored: int) -> SchemaProblem:
    text = (
        f"the sequence of positions is at {last}, but there is a message at {stored}: appends "
        "fail, and readers do not see the messages after it"
    )
    table, sequence = f"{schema.sql}.message", f"{schema.sql}.position"
    repair = (
        "BEGIN",
        f"LOCK TABLE {table} IN EXCLUSIVE MODE",
        (
            f"SELECT setval('{sequence}', greatest(last_value, (SELECT max(position) FROM {table}))) "
            f"FROM {sequence}"
        ),
        "COMMIT",
    )
    return SchemaProblem("sequence-behind", text, repair)


async def problems_of_queues(con: AnyConnection, schema: LogSchema) -> list[SchemaProblem]:
    """Return the problems of queues. Needs the right to read `QUEUES`."""
    problems: list[SchemaProblem] = []
    row = await con.fetchrow(_LAST_PLACE.format(schema=schema.sql))
    assert row is not None  # always one row
    if row["last"] < row["stored"]:
        problems.append(_place_behind(schema, row["last"], row["stored"]))
    rows = await con.fetch(WITHOUT_LANE.format(schema=schema.sql), LOOKED_AT, None)
    return [*problems, *(_without_lane(schema, *row) for row in rows)]


def _place_behind(schema: LogSchema, last: int, stored: int) -> SchemaProblem:
    text = (
        f"the sequence job_place is at {last}, but {stored} is in use already: new jobs would overtake "
        "earlier ones, or be refused"
    )
    sequence, highest = f"{schema.sql}.job_place", _HIGHEST.format(schema=schema.sql)
    repair = (
        "BEGIN",
        f"LOCK TABLE {schema.sql}.job, {schema.sql}.lane IN EXCLUSIVE MODE",
        f"SELECT setval('{sequence}', greatest(last_value, ({highest}))) FROM {sequence}",
        "COMMIT",
    )
    return SchemaProblem("sequence-behind", text, repair)


def _without_lane(schema: LogSchema, queue: str, keys: int, key: str) -> SchemaProblem:
    text = (
        f"the queue {queue!r} has jobs that no claim finds, of {keys} keys or more, such as "
        f"{key!r}: they have neither a lane nor a bell, as after inserts without the trigger "
        "(session_replication_role=replica)"
    )
    repair = f"SELECT {schema.sql}.ring_again({literal(queue)})"
    return SchemaProblem("jobs-without-lane", text, (repair,))
