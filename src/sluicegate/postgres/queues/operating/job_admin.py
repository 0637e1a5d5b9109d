"""Jobs outside of lanes: stopped jobs without a key, dead letters, and old jobs."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias, cast

from ...._core import checks
from ...._core.checks import bad
from ...records.values import aware
from .batches import ALL, BATCH, Batches

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from .queue_stats import StoredQueue
    from .schema_access import SchemaAccess

OnBatch: TypeAlias = "Callable[[int], object]"
"""Called with the number of jobs after each batch of a long operation."""
Purged: TypeAlias = Literal["waiting", "done", "dead"]
_STOPPED = """
SELECT j.place, CASE j.state WHEN 1 THEN 'blocked' ELSE 'parked' END, j.attempts,
  (extract(epoch FROM clock_timestamp()) - extract(epoch FROM j.at))::float8, j.reason
FROM {schema}.job j WHERE j.queue = $1 AND j.state <> 0 ORDER BY j.place LIMIT $2
"""
_RESUME = "SELECT {schema}.resume_loose($1, $2::bigint[], $3)"
_REDRIVE = "SELECT {schema}.redrive_jobs($1, $2, $3::bigint[], $4)"
_DEAD = """
SELECT count(*) FROM (
  SELECT FROM {schema}.finished_job f WHERE f.queue = $1 AND f.outcome = 'dead'
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
KEEP_CLIENTS = timedelta(days=90)


@dataclass(frozen=True, slots=True)
class StoppedJob:
    """A blocked or parked job without a key."""

    place: int
    state: Literal["blocked", "parked"]
    attempts: int
    seconds: float
    """Its age in seconds."""
    reason: str | None


class Retained(NamedTuple):
    """The number of rows that a retention run has deleted."""

    done: int
    dead: int
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
        self._queue = queue.name
        self._settings = queue.settings

    async def stopped(self, *, limit: int = 100) -> list[StoppedJob]:
        """Return blocked or parked jobs without a key, in the order of their places."""
        rows = await self._access.rows(_STOPPED, self._queue, checks.count("limit", limit))
        return [StoppedJob(*row) for row in rows]

    async def resume(self, places: Collection[int], *, skip: bool = False) -> int:
        """Continue such jobs with attempts from 0, or make them dead letters; return their number."""
        values = (_places(places), checks.flag("skip", skip))
        ((count,),) = await self._access.rows(_RESUME, self._queue, *values)
        return int(count)

    async def redrive(
        self,
        *,
        key: str | None = None,
        places: Collection[int] | None = None,
        limit: int | None = None,
        batch: int = BATCH,
        on_batch: OnBatch | None = None,
    ) -> int:
        """Enqueue dead letters again, in order, after the waiting jobs; return their number.

        Jobs that become dead letters in the meantime are left out, as are dead letters whose job is
        still blocked.

        Args:
            key: only jobs of this key.
            places: only these places.
            limit: the most jobs; default: all.
            batch: the most jobs in a transaction; default 1,000.
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
                `"done"` or `"dead"`: kept handled jobs, or dead letters.
            older_than: an aware time, or an age: only jobs enqueued or finished before.
            key: only jobs of this key.
            batch: the most jobs in a transaction; default 1,000.
            on_batch: called after each batch with the number of jobs so far.
        """
        checks.choice("what", what, ("waiting", "done", "dead"))
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

        Handled jobs and dead letters are kept according to the queue's `keep_done` and `keep_dead`.

        Args:
            keep_ids: retention of the ids of handled jobs, which prevent duplicates; default 7
                days.
            keep_clients: retention of the last numbers of clients; default 90 days.
            batch: the most rows in a transaction; default 1,000.
            on_batch: called after each batch with the number of rows of a kind so far.
        """
        batches = Batches(self._access, batch, on_batch)
        counts: dict[str, int] = {}
        kept = {"done": self._settings.keep_done or timedelta(0), "dead": self._settings.keep_dead}
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


def _places(places: Collection[int]) -> list[int]:
    found = sorted({checks.count("places", place) for place in places})
    if not found:
        raise bad("places", places, "must contain the place of at least one job")
    return found
