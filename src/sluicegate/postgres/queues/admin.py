"""Operates queues: creates them, changes settings, pauses them, and reports why they wait.

1. A change is one transaction: it takes effect completely or not at all, even if its caller is
   cancelled.
2. Settings that determine existing jobs and lanes can only be changed in an empty queue, with the
   table of jobs locked against writers, since an open transaction may have enqueued jobs.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, cast

from ..._core import checks
from ..._core.checks import bad, shown
from ..._core.errors import ConfigError, RefusedError
from ..._core.keywords import known_arguments, takes
from ..client.access import PostgresAccess
from ..records.access import SchemaAccess, SchemaObject, nearest
from ..schema.opened import DEFAULT_SCHEMA
from .contents import COUNT_TO, JobAdmin, LaneAdmin
from .enqueue import queue_name
from .queries import STATES, QueueQueries
from .routing import RangeAdmin
from .schedules import ScheduleAdmin
from .settings import (
    COLUMNS,
    FIXED,
    QueueChanges,
    QueueSettings,
    columns_of,
    differences,
    with_changes,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, Unpack

    from ..records.access import SchemaStatements
    from .report import QueueReport
    from .stats import QueueStats, StoredQueue

STATS_TO = 100_000
"""Default limit for counts of jobs and keys."""
_CREATE = (
    f"INSERT INTO {{schema}}.queue (name, {', '.join(COLUMNS)}) "  # noqa: S608
    f"VALUES ($1, {', '.join(f'${n + 2}' for n in range(len(COLUMNS)))}) "
    "ON CONFLICT (name) DO NOTHING RETURNING name"
)
_ALTER = (
    f"UPDATE {{schema}}.queue SET ({', '.join(COLUMNS)}) = "  # noqa: S608
    f"ROW({', '.join(f'${n + 2}' for n in range(len(COLUMNS)))}) WHERE name = $1"
)
_PAUSE = "UPDATE {schema}.queue SET paused = $2 WHERE name = $1"
_WAIT = "SET LOCAL lock_timeout = '5s'"
_LOCK = "LOCK TABLE {schema}.job IN SHARE ROW EXCLUSIVE MODE"
_HAS_WORK = """
SELECT EXISTS (SELECT FROM {schema}.job j WHERE j.queue = $1)
  OR EXISTS (SELECT FROM {schema}.lane l WHERE l.queue = $1 AND l.state <> 0)
"""
_TABLES = ("bell", "lane", "job", "finished_job", "job_id", "queue_client", "queueing_lock")
_DROP = tuple(f"DELETE FROM {{schema}}.{table} t WHERE t.queue = $1" for table in _TABLES)  # noqa: S608
_FORGET_LANES = tuple(
    f"DELETE FROM {{schema}}.{table} t WHERE t.queue = $1"  # noqa: S608
    for table in ("bell", "lane")
)
_DROP_QUEUE = "DELETE FROM {schema}.queue q WHERE q.name = $1"


@known_arguments(access=PostgresAccess)
class QueueAdmin(SchemaObject):
    """Creates, changes and drops queues, and reports the waiting jobs and the reasons.

    `keys`, `jobs`, `schedules` and `routing` return objects that operate the keys, jobs, schedules
    and ranges of a queue.

    Args:
        dsn: `postgresql://user:password@host:port/database`, or a `PostgresAccess`. Never
            shown. The role needs the privilege to operate queues. Only the owner
            of the schema can `drop`, or change `slot_function`, `ordering_required` or `sticky`.
        schema: the schema, created by `sluicegate pg install`; default `"sluicegate"`.

    Raises `ConfigError` for a bad argument and `MissingExtra` without asyncpg. Opening connects,
    and raises `ConfigError` for a schema that is missing or too old. Methods suspend for a few
    statements, and raise `ConfigError` for a queue that does not exist, `RefusedError` if the role
    lacks a privilege, and `UnavailableError` without a connection. A cancelled change may have
    taken effect.
    """

    def __init__(self, dsn: str | PostgresAccess, *, schema: str = DEFAULT_SCHEMA) -> None:
        super().__init__(dsn, schema=schema, size=1)

    # -- settings ----------------------------------------------------------------------------------

    async def queues(self) -> dict[str, StoredQueue]:
        """Return all queues with their settings, by name."""
        return await self._queries.queues()

    @takes(QueueChanges, QueueSettings)
    async def create(self, name: str, **settings: Unpack[QueueChanges]) -> StoredQueue:
        """Create a queue, unless it exists with the same settings; the result tells by `is_new`.

        Args:
            name: the name, at most 200 bytes.
            slot_function: the hash function from a key to a slot: `"sha256"`, which is required for
                enqueuing with plain SQL, or `"blake3"`, which Sluicegate computes.
            ordering_required: handle all jobs in strict order, with one consumer at a time.
            sticky: assign the jobs of a key to the consumer that owns its slot.
            poison: the strategy for a job that cannot be handled: `"skip"`: it becomes a dead
                letter; `"block"`: its key waits for `unblock`; `"block_and_dead_letter"`: both;
                `"park_key"`, the default: its key waits for `unpark`. With `ordering_required`, the
                default is `"block"`, and `"skip"` and `"park_key"` are refused, since later jobs
                must not pass the job.
            max_attempts: number of times a job is leased before it becomes poison; default 5.
            max_depth: the maximum number of jobs; default: no limit.
            max_in_flight: the maximum number of concurrent leases; default: no limit.
            key_rate: the maximum number of jobs of a key that start per second; default: no limit.
            keep_done: retention of handled jobs, a `timedelta` or seconds; default: they are not
                kept.
            keep_dead: retention of dead letters; default: until they are purged.

        Raises `ConfigError` for contradictory settings, before anything is sent, and for an
        existing queue with other settings.
        """
        wanted = QueueSettings(**cast("dict[str, Any]", settings))
        created = await self._access_now.rows(_CREATE, queue_name(name), *columns_of(wanted))
        stored = await self._find(name)
        for setting, ours, theirs in differences(wanted, stored.settings):
            there = f"the queue {name} exists with {setting}={shown(theirs)}"
            rule = f"{there}; pass that, or change it with alter()"
            raise bad(setting, ours, rule)
        return replace(stored, is_new=bool(created))

    async def alter(self, name: str, **changes: Unpack[QueueChanges]) -> StoredQueue:
        """Change settings, with effect from the next enqueue, claim or settlement.

        Args:
            name: the queue.
            changes: settings as in `create`. Changing `slot_function`, `ordering_required` or
                `sticky` requires an empty queue.

        Raises `ConfigError` for contradictory settings, and `RefusedError` if an empty queue is
        required but has jobs, or open transactions may enqueue some.
        """
        stored = await self._find(name)
        settings = with_changes(stored.settings, changes)
        fixed = [each[0] for each in differences(settings, stored.settings) if each[0] in FIXED]
        async with self._access_now.transaction() as statements:
            if fixed:
                await self._empty(statements, name, f"{', '.join(fixed)} may not change")
                for query in _FORGET_LANES:
                    await statements.rows(query, name)
            await statements.rows(_ALTER, name, *columns_of(settings))
        return await self._find(name)

    async def drop(
        self, name: str, *, force: bool = False, on_batch: Callable[[int], object] | None = None
    ) -> None:
        """Delete a queue and all its data.

        Args:
            name: the queue.
            force: also delete its jobs and dead letters. The queue is paused first, and jobs are
                deleted in batches. After an interruption it still exists, paused, and a later call
                continues.
            on_batch: called after each batch with the number of jobs so far.

        Raises `RefusedError` if there are jobs or dead letters, unless forced, and while open
        transactions may enqueue.
        """
        checks.flag("force", force)
        stored = await self._find(name)
        if force:
            await self.pause(name)
            await JobAdmin(self._access_now, stored).purge("waiting", on_batch=on_batch)
        elif (stats := await self._count(stored, 1)).dead:
            text = f"the queue {name} has {stats.dead} dead letters or more"
            raise RefusedError(text, repair="redrive or purge them, or force it")
        async with self._access_now.transaction() as statements:
            if force:
                await self._lock(statements)
            else:
                await self._empty(statements, name, "it stays")
            for query in (*_DROP, _DROP_QUEUE):
                await statements.rows(query, name)

    async def pause(self, name: str) -> None:
        """Stop giving out jobs, until `resume`. Consumers continue with their leased jobs."""
        await self._find(name)
        await self._access_now.rows(_PAUSE, name, True)

    async def resume(self, name: str) -> None:
        """End a pause."""
        await self._find(name)
        await self._access_now.rows(_PAUSE, name, False)

    # -- queries -----------------------------------------------------------------------------------

    async def lag(
        self, name: str | None = None, *, count_to: int = STATS_TO
    ) -> dict[str, QueueStats]:
        """Return the statistics of queues.

        Args:
            name: only this queue; default: all.
            count_to: the limit for each count of jobs or keys; default 100,000.
        """
        most = checks.count("count_to", count_to)
        queues = await self._queries.queues() if name is None else {name: await self._find(name)}
        found = {each: await self._queries.stats(queue, most) for each, queue in queues.items()}
        return {each: stats for each, stats in found.items() if stats is not None}

    async def explain(
        self, name: str, *, key: str | None = None, limit: int = 50, count_to: int = STATS_TO
    ) -> QueueReport:
        """Report why the keys of a queue wait: leases, backoff, stops, routing, and queue limits.

        Args:
            name: the queue.
            key: report only this key.
            limit: the maximum number of keys; default 50. Blocked and parked keys come first.
            count_to: the limit for each count of jobs or keys; default 100,000.
        """
        most, jobs = checks.count("limit", limit), checks.count("count_to", count_to)
        queue = await self._find(name)
        if key is None:
            lanes = await self._queries.lanes(queue, STATES, most, COUNT_TO)
        else:
            lanes = await self._queries.lanes_of(queue, [key], COUNT_TO)
        return await self._queries.report(queue, await self._count(queue, jobs), lanes, key)

    async def keys(self, name: str) -> LaneAdmin:
        """Return an object that operates the keys of a queue."""
        return LaneAdmin(self._access_now, await self._find(name))

    async def jobs(self, name: str) -> JobAdmin:
        """Return an object that lists the jobs of a queue, and operates them."""
        return JobAdmin(self._access_now, await self._find(name))

    async def schedules(self, name: str) -> ScheduleAdmin:
        """Return an object that lists the schedules of a queue, and operates them."""
        return ScheduleAdmin(self._access_now, await self._find(name))

    async def routing(self, name: str, group: str) -> RangeAdmin:
        """Return an object that operates the ranges of a group.

        Raises `ConfigError` without routing.
        """
        return RangeAdmin(self._access_now, await self._find(name), group)

    # -- internal ----------------------------------------------------------------------------------

    @property
    def _access_now(self) -> SchemaAccess:
        return self._access_to("queues")

    @property
    def _queries(self) -> QueueQueries:
        return QueueQueries(self._access_now)

    async def _find(self, name: str) -> StoredQueue:
        found = await self._queries.queues(queue_name(name))
        if name not in found:
            raise self._missing(name, [*await self._queries.queues()])
        return found[name]

    def _missing(self, name: str, others: list[str]) -> ConfigError:
        has = nearest(name, others)
        rule = f"is not in the schema {self._schema}; {has}; `sluicegate queue create` makes one"
        return bad("queue", name, rule)

    async def _count(self, queue: StoredQueue, count_to: int) -> QueueStats:
        stats = await self._queries.stats(queue, count_to)
        if stats is None:
            raise self._missing(queue.name, [])
        return stats

    async def _lock(self, statements: SchemaStatements) -> None:
        await statements.rows(_WAIT)
        await statements.rows(_LOCK)

    async def _empty(self, statements: SchemaStatements, name: str, what: str) -> None:
        """Lock out writers. Raises `RefusedError` if the queue has jobs or stopped keys."""
        await self._lock(statements)
        ((has_work,),) = await statements.rows(_HAS_WORK, name)
        if has_work:
            text = f"the queue {name} has jobs, or blocked or parked keys: {what}"
            raise RefusedError(text, repair="let consumers handle them, or purge them")
