"""The contents of a queue: its keys, its jobs outside of lanes, dead letters, and old jobs.

1. A change is one statement: it takes effect completely or not at all, even if its caller is
   cancelled. Many rows are processed in batches, each in its own transaction: a cancelled call has
   processed complete batches, and a later call continues.
2. If a key has a lease when it is parked or continued, the lease is settled as usual: it is fenced
   by its number.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias, cast

from ..._core import checks
from ..._core.checks import bad
from ..._core.errors import RefusedError
from ..records.values import aware
from .jobs import FINISHED, JOB_STATES, STOPPED, JobDetail, JobQueries, why_without_lane
from .queries import STATES, QueueQueries

if TYPE_CHECKING:
    import builtins
    from collections.abc import Callable, Collection

    from ..records.access import SchemaAccess
    from .jobs import Job, JobPage, JobState
    from .stats import LaneState, LaneStats, StoredQueue


BATCH = 1000
"""Default number of rows per statement."""
ALL = 2**62
COUNT_TO = 1000
"""Default limit for the counted jobs of a key."""
_RESUME = "SELECT {schema}.resume_lane($1, $2, $3, $4)"
_PARK = "SELECT {schema}.park_lane($1, $2, $3)"
_CANCEL = "SELECT * FROM {schema}.cancel_jobs($1, $2::bigint[])"
_RETRY = "SELECT * FROM {schema}.retry_jobs($1, $2::bigint[])"
_REDRIVE = "SELECT {schema}.redrive_jobs($1, $2, $3::bigint[], $4)"
_DEAD = """
SELECT count(*) FROM (
  SELECT FROM {schema}.finished_job f WHERE f.queue = $1
    AND f.outcome = ANY (CASE WHEN $3::bigint[] IS NULL THEN '{dead}' ELSE '{dead,cancelled}' END::text[])
    AND ($2::text IS NULL OR f.key = $2) AND ($3::bigint[] IS NULL OR f.place = ANY ($3))
  LIMIT $4) c
"""
_PURGE_FINISHED = "SELECT {schema}.purge_finished($1, $2, $3, $5, $4)"
_PURGE_WAITING = "SELECT {schema}.purge_waiting($1, $2, $4, NULL, $3)"
_TIME = "SELECT clock_timestamp() - $1::interval"
_FORGET_IDS = """
WITH gone AS (
  DELETE FROM {schema}.job_id i WHERE i.queue = $1 AND i.ctid = ANY (ARRAY(
    SELECT o.ctid FROM {schema}.job_id o WHERE o.queue = $1 AND o.at < $2
      AND NOT EXISTS (SELECT FROM {schema}.job j WHERE j.queue = o.queue AND j.place = o.place)
    LIMIT $3)) RETURNING 1)
SELECT count(*) FROM gone
"""
_FORGET_CLIENTS = """
WITH gone AS (
  DELETE FROM {schema}.queue_client c WHERE c.queue = $1 AND c.ctid = ANY (ARRAY(
    SELECT o.ctid FROM {schema}.queue_client o WHERE o.queue = $1 AND o.at < $2
    LIMIT $3)) RETURNING 1)
SELECT count(*) FROM gone
"""
KEEP_IDS = timedelta(days=7)
"""Default retention of the ids of handled jobs."""
KEEP_CLIENTS = timedelta(days=90)
"""Default retention of the last numbers of clients."""
OnBatch: TypeAlias = "Callable[[int], object]"
"""Called with the number of jobs after each batch of a long operation."""
Purged: TypeAlias = Literal["waiting", "done", "dead", "cancelled"]
Cancelled: TypeAlias = Literal["cancelled", "cancelling", "missing"]
Retried: TypeAlias = Literal["ready", "enqueued", "leased", "behind", "missing"]


class LaneAdmin:
    """The keys of one queue. Created by `QueueAdmin.keys`.

    Methods take the key of a job. In a queue with `ordering_required`, which has one lane, omit the
    key. Methods raise `ConfigError` for a key in another state, and the errors of `QueueAdmin`.
    """

    def __init__(self, access: SchemaAccess, queue: StoredQueue) -> None:
        self._access = access
        self._queries = QueueQueries(access)
        self._queue = queue

    async def lanes(
        self, state: LaneState | None = None, *, limit: int = 100, count_to: int = COUNT_TO
    ) -> list[LaneStats]:
        """Return keys with work, in one state or in the order blocked, parked, leased, ready,
        delayed.

        Args:
            state: only keys in this state.
            limit: the maximum number of keys; default 100.
            count_to: the limit for the count of each key's jobs; default 1,000.
        """
        states = STATES if state is None else (checks.choice("state", state, STATES),)
        most, jobs = checks.count("limit", limit), checks.count("count_to", count_to)
        return await self._queries.lanes(self._queue, states, most, jobs)

    async def unblock(self, key: str = "", *, skip: bool = False) -> None:
        """Continue a blocked or parked key with its first job, and keep the count of its attempts.

        A job without remaining attempts gets one more.

        Args:
            key: the key.
            skip: make that job a dead letter first, and continue after it.

        Raises `RefusedError` for a skip while a consumer has a lease on the key.
        """
        await self._resume(key, skip=checks.flag("skip", skip), keeps_attempts=True)

    async def park(self, key: str = "", reason: str = "parked by an operator") -> bool:
        """Stop giving out jobs of a key, until `unpark`. A key without jobs can be parked as well.

        Jobs enqueued in the meantime wait in order. Returns whether a consumer currently has a
        lease on the key, which it can still settle.
        """
        checked = self._key(key)
        ((state,),) = await self._access.rows(
            _PARK, self._queue.name, checked, checks.text("reason", reason)
        )
        return bool(state == "leased")

    async def unpark(self, key: str = "") -> None:
        """Continue a parked or blocked key in order, with its attempts counted from 0."""
        await self._resume(key, skip=False, keeps_attempts=False)

    async def _resume(self, key: str, *, skip: bool, keeps_attempts: bool) -> None:
        values = (self._queue.name, self._key(key), skip, keeps_attempts)
        ((state,),) = await self._access.rows(_RESUME, *values)
        if state == "missing":
            where = f"the queue {self._queue.name}"
            rule = f"is neither blocked nor parked in {where}; `sluicegate queue explain` lists such keys"
            raise bad("key", key, rule)
        if state == "leased":
            text = f"a consumer has a lease on the key {key!r} of the queue {self._queue.name}"
            raise RefusedError(text, repair="wait until it has ended, or has expired")

    def _key(self, key: str) -> str:
        if self._queue.settings.ordering_required:
            if key:
                rule = (
                    "must be omitted: the queue has ordering_required, so all jobs are in one lane"
                )
                raise bad("key", key, rule)
            return key
        return checks.text("key", key, empty=True)

    def __repr__(self) -> str:
        return f"LaneAdmin({self._queue.name!r})"


class Retained(NamedTuple):
    """The number of rows that a retention run has deleted."""

    done: int
    dead: int
    cancelled: int
    ids: int
    """Ids of enqueued jobs."""
    clients: int
    """Clients and their last numbers."""


class JobAdmin:
    """The jobs of one queue. Created by `QueueAdmin.jobs`.

    Methods raise the errors of `QueueAdmin`.
    """

    def __init__(self, access: SchemaAccess, queue: StoredQueue) -> None:
        self._access = access
        self._stored = queue
        self._queue = queue.name
        self._settings = queue.settings
        self._queries = QueueQueries(access)
        self._jobs = JobQueries(access, queue)

    async def list(
        self,
        state: JobState | None = None,
        *,
        key: str | None = None,
        error: str | None = None,
        older_than: datetime | timedelta | None = None,
        limit: int = 100,
        after: str | None = None,
        payload: bool = False,
    ) -> JobPage:
        """Return a page of jobs.

        Jobs that have not left are listed in the order of their places; delayed ones by their due
        time; blocked and parked ones by their keys, and those without a key at the end. Jobs that
        have left come last ones first, by the time when they left.

        Args:
            state: only jobs in this state; default: all that have not left. For `leased`,
                `blocked` and `parked`, the first job of each such key.
            key: only jobs of this key; not for the three states above.
            error: only dead letters of this error class; empty for those without one. Requires
                `"dead"`, and no `key`.
            older_than: an aware time, or an age: only jobs that left before. Requires `"done"`,
                `"dead"` or `"cancelled"`.
            limit: the size of the page; default 100. A page of waiting jobs may be smaller although
                there are more.
            after: the `next` of the previous page.
            payload: whether the jobs have their payloads.
        """
        if state is not None:
            checks.choice("state", state, JOB_STATES)
        most, payload = checks.count("limit", limit), checks.flag("payload", payload)
        has_left = state in FINISHED
        if error is not None and (state != "dead" or key is not None):
            raise bad("error", error, 'requires state="dead", and no key')
        if key is not None and state in {"leased", *STOPPED}:
            raise bad("key", key, f"cannot be given for {state} jobs; list its jobs in all states")
        if older_than is not None and not has_left:
            rule = "requires jobs that have left; the others are listed from the oldest"
            raise bad("older_than", older_than, rule)
        before = None if older_than is None else await self._moment(older_than)
        if state is not None and has_left:
            return await self._jobs.finished(
                state, most, after, before=before, key=key, error=error, payload=payload
            )
        return await self._jobs.open(state, most, after, key=key, payload=payload)

    async def find(self, places: Collection[int], *, payload: bool = False) -> builtins.list[Job]:
        """Return the jobs at these places, in order, without those that are neither here nor kept."""
        return await self._jobs.find(
            _places(places, empty=True), payload=checks.flag("payload", payload)
        )

    async def errors(self, *, count_to: int = COUNT_TO) -> dict[str, int]:
        """Return the number of dead letters by error class, empty for those without one.

        Args:
            count_to: the limit for each number; default 1,000. Of at most 100 classes.
        """
        return await self._jobs.classes(checks.count("count_to", count_to))

    async def show(self, place: int) -> JobDetail | None:
        """Return a job with its payload, the state of its key, and the reason why it waits.

        Returns `None` for a job that is neither here nor kept.
        """
        found = await self._jobs.find(_places([place]), payload=True)
        if not found:
            return None
        (job,) = found
        lane, waits_for = None, None
        if job.finished_at is None:
            lane, waits_for = await self._why(job)
        return JobDetail(job, lane, waits_for)

    async def _why(self, job: Job) -> tuple[LaneStats | None, str]:
        """Return the lane of a job, if it has one, and the reason why the job waits."""
        key = "" if self._settings.ordering_required else job.key
        if job.state == "delayed" or key is None:
            stats = await self._queries.stats(self._stored, 1)
            is_paused = stats is not None and stats.is_paused
            return None, why_without_lane(job, is_paused=is_paused)
        lanes = await self._queries.lanes_of(self._stored, [key], COUNT_TO)
        stats = await self._queries.stats(self._stored, COUNT_TO)
        if not lanes or stats is None:
            return None, await self._queries.why_no_lane(self._stored, key)
        (lane,) = lanes
        why = (await self._queries.report(self._stored, stats, lanes, key)).reason(lane)
        if job.is_cancelled:
            why = f"cancelled: it is not leased again; {why}"
        behind = job.state == "waiting" and lane.place not in {None, job.place}
        return (
            lane,
            f"behind the job at {lane.place}, which is {lane.state}: {why}" if behind else why,
        )

    async def cancel(self, places: Collection[int]) -> dict[int, Cancelled]:
        """Cancel jobs; return the result for each.

        `"cancelled"`: it has left its queue. It is kept as long as a dead letter, and returns only
        by `retry`. `"cancelling"`: it is leased. Its handler is cancelled with the next extension of
        the lease. A job that is settled as handled before that is done; any other end of its lease
        cancels it. `"missing"`: it has left, or its place has changed since it was delayed.

        A key that is blocked by a cancelled job continues. A parked key stays parked. Suspends up to
        5 s while other transactions lock the jobs or their keys, and then raises `RefusedError`.
        """
        return dict(await self._access.rows(_CANCEL, self._queue, _places(places, empty=True)))

    async def retry(self, places: Collection[int]) -> dict[int, Retried]:
        """Let jobs be leased now, with attempts from 0; return the result for each.

        `"ready"`: it is no longer delayed, blocked, parked or backing off, and nor is its key.
        `"enqueued"`: it was a dead letter, or cancelled, and is behind the waiting jobs, at another
        place. The others are unchanged: `"leased"`, `"behind"` another job of its key, or
        `"missing"`. Suspends and raises as `cancel` does.
        """
        return dict(await self._access.rows(_RETRY, self._queue, _places(places, empty=True)))

    async def redrive(
        self,
        *,
        key: str | None = None,
        places: Collection[int] | None = None,
        limit: int | None = None,
        batch: int = BATCH,
        on_batch: OnBatch | None = None,
    ) -> int:
        """Enqueue dead letters again, in order, after the waiting jobs; return the number of
        enqueued jobs.

        Jobs that become dead letters during the call are left out, as are dead letters whose job is
        still blocked.

        Args:
            key: only jobs of this key.
            places: only these places, including cancelled jobs.
            limit: the maximum number of jobs; default: all.
            batch: the maximum number of jobs in a transaction; default 1,000.
            on_batch: called after each batch with the number of jobs so far.
        """
        batches = Batches(self._access, batch, on_batch)
        wanted = None if places is None else _places(places)
        values = (self._queue, key, wanted)
        most = ALL if limit is None else checks.count("limit", limit)
        ((there,),) = await self._access.rows(_DEAD, *values, most)
        return await batches.run(_REDRIVE, *values, most=there)

    async def purge(
        self,
        what: Purged,
        *,
        older_than: datetime | timedelta | None = None,
        key: str | None = None,
        batch: int = BATCH,
        on_batch: OnBatch | None = None,
    ) -> int:
        """Delete jobs permanently; return their number.

        Args:
            what: `"waiting"`: jobs without a lease, including delayed, blocked and parked ones;
                `"done"`, `"dead"` or `"cancelled"`: kept handled jobs, dead letters, or cancelled
                jobs.
            older_than: an aware time, or an age: only jobs enqueued or finished before.
            key: only jobs of this key.
            batch: the maximum number of jobs in a transaction; default 1,000.
            on_batch: called after each batch with the number of jobs so far.
        """
        checks.choice("what", what, ("waiting", *FINISHED))
        batches = Batches(self._access, batch, on_batch)
        before = None if older_than is None else await self._moment(older_than)
        if what == "waiting":
            return await batches.run(_PURGE_WAITING, self._queue, key, before)
        if before is None:
            before = await self._moment(-timedelta(seconds=1))
        return await batches.run(_PURGE_FINISHED, self._queue, what, before, key)

    async def apply_retention(
        self,
        *,
        keep_ids: timedelta = KEEP_IDS,
        keep_clients: timedelta = KEEP_CLIENTS,
        batch: int = BATCH,
        on_batch: OnBatch | None = None,
    ) -> Retained:
        """Delete expired data. Call it regularly, as the owner of the schema.

        Handled jobs are kept according to the queue's `keep_done`, dead letters and cancelled jobs
        according to its `keep_dead`.

        Args:
            keep_ids: retention of the ids of handled jobs, which prevent duplicates; default 7
                days.
            keep_clients: retention of the last numbers of clients; default 90 days.
            batch: the maximum number of rows in a transaction; default 1,000.
            on_batch: called after each batch with the number of rows of a kind so far.
        """
        batches = Batches(self._access, batch, on_batch)
        counts: dict[str, int] = {}
        dead = self._settings.keep_dead
        kept = {"done": self._settings.keep_done or timedelta(0), "dead": dead, "cancelled": dead}
        for outcome, age in kept.items():
            counts[outcome] = 0
            if age is not None:
                values = (self._queue, outcome, await self._moment(age), None)
                counts[outcome] = await batches.run(_PURGE_FINISHED, *values)
        for kind, query, age in (
            ("ids", _FORGET_IDS, keep_ids),
            ("clients", _FORGET_CLIENTS, keep_clients),
        ):
            counts[kind] = await batches.run(query, self._queue, await self._moment(age))
        return Retained(**counts)

    async def _moment(self, older_than: object) -> datetime:
        """Return the aware time, or the server's time minus the age."""
        if isinstance(older_than, timedelta):
            ((found,),) = await self._access.rows(_TIME, older_than)
            return cast("datetime", found)
        if not isinstance(older_than, datetime):
            raise bad("older_than", older_than, "must be an aware datetime, or a timedelta")
        return aware("older_than", older_than)

    def __repr__(self) -> str:
        return f"JobAdmin({self._queue!r})"


def _places(places: Collection[int], *, empty: bool = False) -> list[int]:
    found = sorted({checks.count("places", place) for place in places})
    if not (found or empty):
        raise bad("places", places, "must contain the place of at least one job")
    return found


class Batches:
    """Runs a statement until it finds fewer rows than its limit."""

    def __init__(
        self, access: SchemaAccess, size: int, on_batch: Callable[[int], object] | None
    ) -> None:
        self._access = access
        self._size = checks.count("batch", size)
        self._on_batch = on_batch

    async def run(self, query: str, *values: object, most: int = ALL) -> int:
        """Run the query, whose last parameter is the size and whose result is the number of rows.

        Returns the total number of rows, at most `most`.
        """
        done = 0
        while done < most:
            size = min(self._size, most - done)
            ((count,),) = await self._access.rows(query, *values, size)
            done += int(count)
            if count and self._on_batch is not None:
                self._on_batch(done)
            if count < size:
                break
        return done
