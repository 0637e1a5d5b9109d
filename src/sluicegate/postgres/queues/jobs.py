"""Single jobs of a queue: lists in pages, one job in full, and the reason why it waits.

1. Each statement finds the places of a page in the order of an index, from the cursor of the page
   before, and then looks up their jobs and lanes. So a page costs the same however many jobs there
   are. A filter without an index is refused; waiting jobs alone are found by reading all jobs that
   have not left, at most `ROUNDS` pages at a time. Plans are not left to estimates (`BY_INDEX`), since
   tables may never have been analyzed.
2. The state of a key is that of its first job: the leased one, or the one that stopped its key, or
   the next one. The others of the key are `waiting`.
3. Leases are few, since consumers hold them, so all are read and sorted.
4. Every row can be decoded, whatever a job contains: times beyond those of Python are the nearest
   ones, and JSON that Python does not decode is text.
"""

# ruff: noqa: S608  # the quoted name of the schema, and fragments of the library itself

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

from ..._core.checks import bad
from ..records.values import milliseconds, time_of, timestamp_of
from .queries import NOW

if TYPE_CHECKING:
    from collections.abc import Collection
    from datetime import datetime

    from ..records.access import SchemaAccess
    from .stats import LaneStats, StoredQueue


JobState = Literal["waiting", "delayed", "leased", "blocked", "parked", "done", "dead", "cancelled"]
JOB_STATES: tuple[JobState, ...] = get_args(JobState)
STOPPED: dict[str, int] = {"blocked": 1, "parked": 2}
FINISHED = ("done", "dead", "cancelled")
ROUNDS = 10
"""Maximum number of statements for a page of waiting jobs."""
MOST_CLASSES = 100
"""The most error classes that are counted."""


@dataclass(frozen=True, slots=True)
class Job:
    """A job of a queue, or one that has left it and is kept."""

    place: int
    """Its place in the queue: the order of its key, and the name of the job for commands."""
    id: str | None
    key: str | None
    state: JobState
    """That of its key, if it is the first job of its key; `waiting` if it is behind it."""
    attempts: int
    """The number of leases it has had."""
    at: datetime
    """When it was enqueued."""
    due: datetime | None
    """The end of its delay or backoff."""
    finished_at: datetime | None
    """When it has left."""
    priority: int
    owner: str | None
    """The consumer with its lease."""
    lease_until: datetime | None
    reason: str | None
    """Why its last attempt failed, or why it or its key was stopped."""
    error: str | None
    """The error class of a dead letter."""
    is_cancelled: bool
    """Whether it was cancelled while it was leased; it is not leased again."""
    headers: Any
    payload: Any = None
    """`None` unless requested. JSON that Python cannot decode is text, as in `headers`."""


_TIMES, _JSON = (5, 6, 7, 10), (14, 15)
"""The fields of a `Job` with times, and with JSON."""


@dataclass(frozen=True, slots=True)
class JobPage:
    """A page of a list of jobs."""

    items: tuple[Job, ...]
    next: str | None
    """The cursor of the next page; `None` if this page is the last one."""


@dataclass(frozen=True, slots=True)
class JobDetail:
    """One job with its payload, the lane of its key, and the reason why it waits."""

    job: Job
    lane: LaneStats | None
    """`None` for a job without a key, one that is delayed or has left, and before the first claim."""
    waits_for: str | None
    """`None` if it has left."""


_OFF = "seqscan bitmapscan hashjoin mergejoin sort incremental_sort"
BY_INDEX = "SELECT set_config('jit', 'off', true), " + ", ".join(
    f"set_config('enable_{each}', 'off', true)" for each in _OFF.split()
)
"""Makes the statements of a transaction find rows by indexes."""
# of jobs: $1 is the queue, $2 whether payloads are wanted, $3 the size of the page
_FIRST = """(SELECT e.place FROM {schema}.job e
    WHERE e.queue = $1 {of_lane} AND e.due IS NULL AND e.place > least(l.after, l.low - 1)
    ORDER BY {order} LIMIT 1)"""
_OPEN = f"""
SELECT j.place, j.id::text, j.key, CASE WHEN j.due IS NOT NULL THEN 'delayed'
    WHEN s.state = 1 THEN 'blocked' WHEN s.state = 2 THEN 'parked'
    WHEN s.lease IS NOT NULL THEN 'leased' ELSE 'waiting' END,
  CASE WHEN l.key IS NULL THEN j.attempts WHEN l.head = j.place THEN l.attempts ELSE 0 END,
  {milliseconds("j.at")}, {milliseconds("coalesce(j.due, s.due)")}, NULL, j.priority, s.owner,
  {milliseconds("s.lease_until")}, s.reason, NULL, j.cancelled, j.headers::text,
  CASE WHEN $2 THEN j.payload::text END, p.cursor
FROM (%s) p
LEFT JOIN LATERAL (
  SELECT j.* FROM {{schema}}.job j WHERE j.queue = $1 AND j.place = p.place OFFSET 0) j ON true
LEFT JOIN LATERAL (
  SELECT l.* FROM {{schema}}.lane l
  WHERE j.due IS NULL AND l.queue = $1 AND l.key = {{lane}} OFFSET 0) l ON true
LEFT JOIN LATERAL (
  SELECT l.state, l.lease, l.owner, l.lease_until, l.reason,
    CASE WHEN l.lease IS NULL AND l.due > {NOW} THEN l.due END AS due
  WHERE j.place = coalesce(CASE WHEN l.lease IS NOT NULL THEN l.head END, {_FIRST})
  UNION ALL
  SELECT j.state, j.lease, j.owner, j.lease_until, j.reason, NULL WHERE l.key IS NULL) s ON true
ORDER BY p.n
"""
"""Jobs that have not left, by their places. A place without a job has a row, too."""


def _next(table: str, where: str, order: str, cursor: str, place: str = "l.place") -> str:
    """Select the next places of a table in the order of an index, each with its cursor."""
    return (
        f"SELECT {place} AS place, jsonb_build_array({cursor}) AS cursor, row_number() OVER () AS n "
        f"FROM (SELECT * FROM {{schema}}.{table} l WHERE l.queue = $1 AND {where} ORDER BY {order} LIMIT $3) l"
    )


_KEYED = "l.key = $5 AND l.due IS{} NULL AND l.place > $4"
_DELAYED_KEY = _next("job", _KEYED.format(" NOT"), "l.queue, l.key, l.place", "l.place")
_LANE_KEY = _next("job", _KEYED.format(""), "l.queue, l.key, l.place", "l.place")
SOURCES = {
    "open": _next("job", "l.place > $4", "l.queue, l.place", "l.place"),
    "open of a key": (
        f"SELECT * FROM (({_LANE_KEY}) UNION ALL ({_DELAYED_KEY})) u (place, cursor, k) "
        "CROSS JOIN LATERAL (SELECT u.place AS n) n ORDER BY u.place LIMIT $3"
    ),
    "delayed": _next(
        "job",
        "l.due IS NOT NULL AND (l.due, l.place) > ($4::text::timestamptz, $5)",
        "l.queue, l.due, l.place",
        "l.due::text, l.place",
    ),
    "delayed of a key": _DELAYED_KEY,
    "leased": f"""SELECT u.place, jsonb_build_array(u.place) AS cursor, u.place AS n FROM (
      (SELECT coalesce(l.head, {_FIRST}) AS place FROM {{schema}}.lane l
       WHERE l.queue = $1 AND l.lease IS NOT NULL AND l.state = 0 ORDER BY l.queue, l.lease_until OFFSET 0)
      UNION ALL
      (SELECT l.place FROM {{schema}}.job l
       WHERE l.queue = $1 AND l.lease IS NOT NULL ORDER BY l.queue, l.lease_until OFFSET 0)) u WHERE u.place > $4 ORDER BY u.place LIMIT $3""",
    "stopped keys": _next(
        "lane",
        "l.state <> 0 AND l.state = $5 AND l.key >= $4 AND l.key IS DISTINCT FROM $6::text",
        "l.queue, l.state, l.key",
        "l.key",
        _FIRST,
    ),
    "stopped": _next(
        "job",
        "l.state <> 0 AND l.state = $5 AND l.place > $4",
        "l.queue, l.state, l.place",
        "l.place",
    ),
    "places": (
        "SELECT u.place, NULL::jsonb AS cursor, u.place AS n FROM unnest($3::bigint[]) AS u (place)"
    ),
}
"""The places of pages. $4 and later are those of the cursor, and of the filter."""
_FINISHED = f"""
SELECT f.place, f.id::text, f.key, f.outcome, f.attempts, {milliseconds("f.at")}, NULL,
  {milliseconds("f.finished_at")}, f.priority, NULL, NULL, f.reason, f.error, false,
  f.headers::text, CASE WHEN $2 THEN f.payload::text END,
  jsonb_build_array(f.finished_at::text, f.place)
FROM {{schema}}.finished_job f
WHERE f.queue = $1 AND %s
"""
_CLASS = "coalesce(f.error, '')"
_NEXT_CLASS = (
    f"SELECT {_CLASS} AS error FROM {{schema}}.finished_job f WHERE f.queue = $1 "
    f"AND f.outcome = 'dead' %s ORDER BY f.queue, {_CLASS} LIMIT 1"
)
CLASSES = f"""
WITH RECURSIVE c AS (
  ({_NEXT_CLASS % ""})
  UNION ALL
  SELECT n.error FROM c CROSS JOIN LATERAL ({_NEXT_CLASS % f"AND {_CLASS} > c.error"}) n)
SELECT c.error, (SELECT count(*) FROM (
    SELECT FROM {{schema}}.finished_job f
    WHERE f.queue = $1 AND f.outcome = 'dead' AND {_CLASS} = c.error
    ORDER BY f.queue, {_CLASS}, f.finished_at LIMIT $2) d)
FROM (SELECT * FROM c LIMIT {MOST_CLASSES}) c
"""
"""The error classes of dead letters, with their numbers up to a limit."""


def finished_query(state: str, key: str | None, error: str | None) -> str:
    """Return the statement of a page of finished jobs, the last ones first."""
    where, columns = f"f.outcome = '{state}'", ["f.queue", "f.outcome"]
    if error is not None:
        where, columns = f"{where} AND {_CLASS} = $6", ["f.queue", _CLASS]
    elif key is not None:
        where, columns = f"{where} AND f.key = $6", ["f.queue", "f.key", "f.outcome"]
    order = ", ".join(f"{each} DESC" for each in (*columns, "f.finished_at", "f.place"))
    before = f"(f.finished_at, f.place) < ($4::text::timestamptz, $5) ORDER BY {order} LIMIT $3"
    return _FINISHED % f"{where} AND {before}"


def open_query(source: str, *, is_one: bool) -> str:
    """Return the statement of a page of jobs that have not left, of a queue that may be one lane."""
    query = _OPEN % SOURCES[source]
    query = query.replace("{of_lane}", "" if is_one else "AND e.key = l.key")
    query = query.replace("{order}", "e.queue, e.place" if is_one else "e.queue, e.key, e.place")
    return query.replace("{lane}", "''" if is_one else "j.key")


class JobQueries:
    """Lists of the jobs of one queue. Methods suspend, and raise the errors of `SchemaAccess`."""

    def __init__(self, access: SchemaAccess, queue: StoredQueue) -> None:
        self._access = access
        self._queue = queue.name
        self._is_one = queue.settings.ordering_required

    async def finished(
        self,
        state: JobState,
        limit: int,
        after: str | None,
        *,
        before: datetime | None,
        key: str | None,
        error: str | None,
        payload: bool,
    ) -> JobPage:
        """Return a page of jobs that have left, the last ones first."""
        start: list[Any] = ["infinity", 2**63 - 1] if before is None else [before.isoformat(), -1]
        _, *start = _cursor_of(after, state) or [state, *start]
        only = [each for each in (error, key) if each is not None][:1]
        query = finished_query(state, key, error)
        rows = await self._by_index(query, self._queue, payload, limit, *start, *only)
        items = tuple([_job_of(row) for row in rows])
        return JobPage(
            items, _text_of([state, *json.loads(rows[-1][-1])]) if len(rows) == limit else None
        )

    async def open(
        self,
        state: JobState | None,
        limit: int,
        after: str | None,
        *,
        key: str | None,
        payload: bool,
    ) -> JobPage:
        """Return a page of jobs that have not left."""
        source = "open" if state in {None, "waiting"} else str(state)
        sources = ["stopped keys", "stopped"] if state in STOPPED else [source]
        sources = sources if key is None else [f"{source} of a key"]
        source, *cursor = _cursor_of(after, *sources) or sources[:1]
        items: list[Job] = []
        for _ in range(ROUNDS):
            rows = await self._rows(source, payload, limit, *_start(source, cursor, state, key))
            for row in rows:
                cursor = json.loads(row[-1])
                job = None if row[0] is None else _job_of(row)
                if job is not None and state in {None, job.state}:
                    items.append(job)
                    if len(items) == limit:
                        return JobPage(tuple(items), _text_of([source, *cursor]))
            if len(rows) < limit:
                if source != "stopped keys":
                    return JobPage(tuple(items), None)
                source, cursor = "stopped", []  # jobs without a key follow
        return JobPage(tuple(items), _text_of([source, *cursor]))

    async def find(self, places: Collection[int], *, payload: bool) -> list[Job]:
        """Return those jobs at these places that still exist or are kept, in order."""
        rows = [row for row in await self._rows("places", payload, places) if row[0] is not None]
        left = {*places}.difference(row[0] for row in rows)
        if left:
            query = _FINISHED % "f.place = ANY ($3::bigint[])"
            rows += await self._by_index(query, self._queue, payload, [*left])
        return sorted([_job_of(row) for row in rows], key=lambda job: job.place)

    async def classes(self, count_to: int) -> dict[str, int]:
        """Return the number of dead letters by error class, at most `count_to` of each."""
        return dict(await self._by_index(CLASSES, self._queue, count_to))

    async def _rows(self, source: str, payload: object, *values: object) -> list[Any]:
        query = open_query(source, is_one=self._is_one)
        return await self._by_index(query, self._queue, payload, *values)

    async def _by_index(self, query: str, *values: object) -> list[Any]:
        async with self._access.transaction() as statements:
            await statements.rows(BY_INDEX)
            return await statements.rows(query, *values)


def why_without_lane(job: Job, *, is_paused: bool) -> str:
    """Return why a job that is in no lane waits, or the owner of its lease."""
    if job.state in STOPPED:
        why = job.reason or "no reason was given"
        return f"{job.state} after {job.attempts} attempts: {why}; `sluicegate queue retry` continues it"
    if job.state == "leased":
        cancelled = "cancelled, and " if job.is_cancelled else ""
        return f"{cancelled}leased by {job.owner} until {job.lease_until}"
    if job.due is not None:
        tries = f" after {job.attempts} attempts: {job.reason}" if job.attempts else ""
        return f"due at {job.due}{tries}"
    return "the queue is paused" if is_paused else "ready: the next claim may lease it"


def _start(source: str, cursor: list[Any], state: str | None, key: str | None) -> list[object]:
    """Return the arguments of a source behind a cursor, which is empty for the first page."""
    if source == "delayed":
        return cursor or ["-infinity", 0]
    if source == "stopped keys":
        return [*(cursor or [""]), STOPPED[state or ""], *(cursor or [None])]
    only = STOPPED[state or ""] if source == "stopped" else key
    return [*(cursor or [0]), *([] if only is None else [only])]


def _text_of(cursor: list[Any]) -> str:
    return base64.urlsafe_b64encode(json.dumps(cursor).encode()).decode().rstrip("=")


def _cursor_of(after: str | None, *sources: str | None) -> list[Any] | None:
    if after is None:
        return None
    try:
        found = json.loads(base64.urlsafe_b64decode(after + "=" * (-len(after) % 4)))
        if found[0] in sources:
            return [*found]
    except (AttributeError, LookupError, TypeError, ValueError):
        pass
    raise bad("after", after, "must be the `next` of a page with the same filters")


def _job_of(row: Any) -> Job:
    values = [*row][:-1]  # without the cursor
    for column in _TIMES:
        if (since := values[column]) is not None:
            values[column] = time_of(timestamp_of(since) * 1000)
    for column in _JSON:
        if (text := values[column]) is not None:
            values[column] = _decoded(text)
    return Job(*values)


def _decoded(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text
