"""Schedules of a queue: periodic jobs, as operators see them.

1. A change is one transaction, under the lock of the schedule's row.
2. A change of the times, and the end of a pause, begin with the next tick after the server's time:
   earlier ticks that have not fired are dropped.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import timedelta
from itertools import islice
from typing import TYPE_CHECKING, Any

from ..._core import checks
from ..._core.checks import bad
from ..records.access import nearest
from ..records.values import json_text, milliseconds, name_text, time_of, timestamp_of
from .enqueue import headers_text, job_key, job_priority
from .ring import ring_slot
from .ticks import CATCH_UPS, CatchUp, Timing

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from ..records.access import SchemaAccess, SchemaStatements
    from .ring import SlotFunction
    from .stats import StoredQueue

LONGEST_NAME = 200
LONGEST_PAYLOAD = 1 << 16
"""Characters of JSON. It is repeated for each tick of a transaction."""
HEADERS = ("schedule", "scheduled_for")
"""The headers of a job that its schedule sets."""
_TIMES = ("next_at", "last_at", "created_at")
_COLUMNS = (
    "cron",
    "every",
    "timezone",
    "payload",
    "key",
    "headers",
    "priority",
    "catch_up",
    "paused",
)
_SELECT = (
    "SELECT s.name, s.cron, s.every, s.timezone, s.payload::text, s.key, s.headers::text, s.priority, "  # noqa: S608
    f"s.catch_up, s.paused, {', '.join(milliseconds(f's.{each}') for each in _TIMES)}, s.last_job "
    "FROM {schema}.schedule s WHERE s.queue = $1 AND "
)
_ONE = f"{_SELECT} s.name = $2"
_PAGE = f"{_SELECT} s.name > $2 ORDER BY s.name LIMIT $3"
_NAMES = "SELECT s.name FROM {schema}.schedule s WHERE s.queue = $1 ORDER BY s.name"
_VALUES = (
    "$3, $4::bigint, $5, $6::text::jsonb, $7, $8::text::jsonb, $9::int, $10, $11::boolean, "
    "to_timestamp($12::bigint)"
)
_INSERT = (
    f"INSERT INTO {{schema}}.schedule (queue, name, {', '.join(_COLUMNS)}, next_at) "  # noqa: S608
    f"VALUES ($1, $2, {_VALUES}) ON CONFLICT DO NOTHING RETURNING name"
)
_UPDATE = (
    f"UPDATE {{schema}}.schedule SET revision = revision + 1, ({', '.join(_COLUMNS)}, next_at) = "  # noqa: S608
    f"ROW({_VALUES}) WHERE queue = $1 AND name = $2"
)
_PAUSE = (
    "UPDATE {schema}.schedule SET paused = $3, revision = revision + 1, "
    "next_at = coalesce(to_timestamp($4::bigint), next_at) WHERE queue = $1 AND name = $2"
)
_NOW = "SELECT floor(extract(epoch FROM {schema}.schedule_now()))::bigint"
_DELETE = "DELETE FROM {schema}.schedule s WHERE s.queue = $1 AND s.name = $2 RETURNING s.name"
_RUN = "SELECT {schema}.run_schedule($1, $2, $3)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """A periodic job of a queue."""

    queue: str
    name: str
    cron: str | None
    every: timedelta | None
    """The interval; either this or `cron` is given."""
    timezone: str
    payload: Any
    key: str | None
    headers: Any
    priority: int
    catch_up: CatchUp
    is_paused: bool
    next_at: datetime | None
    """The next tick to fire; `None` during a pause."""
    last_at: datetime | None
    """The last tick that has fired."""
    last_job: int | None
    """The queue place of the last job that a tick enqueued; `None` before the first one."""
    created_at: datetime

    def ticks(self, count: int = 5) -> list[datetime]:
        """Return the next ticks; empty while the schedule is paused. Does not suspend.

        Args:
            count: the maximum number of ticks; default 5.

        Raises `MissingExtra` without cronsim.
        """
        checks.count("count", count)
        if self.next_at is None:
            return []
        first = int(self.next_at.timestamp())
        later = islice(Timing(self.cron, self.every, self.timezone).after(first), count - 1)
        return [self.next_at, *[time_of(tick * 1_000_000) for tick in later]]


@dataclass(frozen=True, slots=True)
class SchedulePage:
    """One page of the list of schedules."""

    items: tuple[Schedule, ...]
    next: str | None
    """The cursor of the next page; `None` if this page is the last one."""


class ScheduleAdmin:
    """The schedules of one queue. Created by `QueueAdmin.schedules`.

    The consumers of the queue fire schedules: in one transaction, a job is enqueued and the schedule
    moves to its next tick, so each tick fires once, however many consumers there are. Without a live
    consumer nothing fires, and `catch_up` determines what happens to the missed ticks. Times are
    those of the server's clock. A job has the headers `schedule`, the name, and `scheduled_for`, its tick
    in UTC, such as `2026-03-29T01:00:00Z`.

    Methods raise the errors of `QueueAdmin`, and `ConfigError` for a schedule that does not exist.
    """

    def __init__(self, access: SchemaAccess, queue: StoredQueue) -> None:
        self._access = access
        self._queue = queue.name
        self._function: SlotFunction = queue.settings.slot_function

    async def put(
        self,
        name: str,
        *,
        cron: str | None = None,
        every: timedelta | float | None = None,
        timezone: str = "UTC",
        payload: object = None,
        key: str | int | None = None,
        headers: Mapping[str, object] | None = None,
        priority: int = 0,
        catch_up: CatchUp = "last",
    ) -> Schedule:
        """Create a schedule, or replace an existing one; return it.

        If its times change, it starts over with the next tick: earlier ticks that have not fired are
        dropped. Otherwise its next tick stays. A paused one stays paused.

        Args:
            name: the name, at most 200 bytes.
            cron: an expression with five fields: minute, hour, day of month, month and day of week, as
                in Debian's cron; and also `L` for the last day of a month, `LW` for its last weekday,
                `5L` for its last Friday, and `MON#1` for its first Monday. If the hour and the minute do
                not begin with a star, a time that daylight saving time skips fires once, at the end of
                the gap, and a time that occurs twice fires at the first one. Other expressions, such as
                `*/15 * * * *`, follow the running time: a skipped hour has no ticks, and a repeated one
                has them twice.
            every: an interval, a `timedelta` or whole seconds, instead of `cron`. Ticks are its multiples
                since 1970-01-01T00:00Z: those of an hour are full hours.
            timezone: the IANA name of the time zone of `cron`; default UTC.
            payload: the contents of the jobs, which must be representable in JSON, with at most
                65,536 characters; default: null.
            key: the key of the jobs, which are then handled one after another; default: no key.
            headers: more headers of the jobs, without `schedule` and `scheduled_for`; default: none.
            priority: the priority of the jobs; default 0.
            catch_up: ticks that fire more than 60 s late, since no consumer was live, are missed:
                `"all"` fires a job for each of them, in order; `"last"`, the default, fires the last of
                them, unless a later tick is on time; `"none"` drops them.

        Raises `ConfigError` for a bad argument, before anything is sent.
        """
        checked = schedule_name(name)
        length = None if every is None else checks.seconds("every", every, usual=checks.LONG_PERIOD)
        timing = Timing(cron, None if length is None else timedelta(seconds=length), timezone)
        text = json_text("payload", payload)
        if len(text) > LONGEST_PAYLOAD:
            rule = f"must be at most {LONGEST_PAYLOAD} characters of JSON long"
            raise bad("payload", f"{len(text)} characters", rule)
        for header in HEADERS:
            if headers is not None and header in headers:
                raise bad("headers", header, "must not be given: the schedule sets it")
        values = (
            timing.cron,
            None if timing.every is None else int(timing.every.total_seconds()),
            timing.timezone,
            text,
            job_key(key),
            headers_text(headers, {}) or "{}",
            job_priority(priority),
            checks.choice("catch_up", catch_up, CATCH_UPS),
        )
        async with self._access.transaction() as statements:
            await self._store(statements, checked, timing, values)
            rows = await statements.rows(_ONE, self._queue, checked)
            return _schedule_of(self._queue, rows[0])

    async def _store(
        self,
        statements: SchemaStatements,
        name: str,
        timing: Timing,
        values: tuple[object, ...],
    ) -> None:
        following = await self._next(statements, timing, None)
        new = (self._queue, name, *values, False, following)
        stored = None
        while stored is None:  # again if it is deleted in between
            if await statements.rows(_INSERT, *new):
                return
            stored = await self._lock(statements, name)
        if timing == _timing(stored) and stored.next_at is not None:
            following = int(stored.next_at.timestamp())
        else:
            following = await self._next(statements, timing, stored)
        await statements.rows(_UPDATE, self._queue, name, *values, stored.is_paused, following)

    async def list(self, *, limit: int = 100, after: str | None = None) -> SchedulePage:
        """Return a page of schedules, in the order of their names.

        Args:
            limit: the size of the page; default 100.
            after: the `next` of the previous page.
        """
        most = checks.count("limit", limit)
        start = "" if after is None else checks.text("after", after)
        rows = await self._access.rows(_PAGE, self._queue, start, most)
        items = tuple([_schedule_of(self._queue, row) for row in rows])
        return SchedulePage(items, items[-1].name if len(items) == most else None)

    async def show(self, name: str) -> Schedule | None:
        """Return a schedule; `None` if it does not exist."""
        rows = await self._access.rows(_ONE, self._queue, schedule_name(name))
        return _schedule_of(self._queue, rows[0]) if rows else None

    async def pause(self, name: str) -> None:
        """Stop firing a schedule, until `resume`."""
        async with self._access.transaction() as statements:
            await self._locked(statements, schedule_name(name))
            await statements.rows(_PAUSE, self._queue, name, True, None)

    async def resume(self, name: str) -> None:
        """End a pause. Ticks during the pause are dropped."""
        async with self._access.transaction() as statements:
            stored = await self._locked(statements, schedule_name(name))
            if stored.is_paused:
                following = await self._next(statements, _timing(stored), stored)
                await statements.rows(_PAUSE, self._queue, name, False, following)

    async def delete(self, name: str) -> None:
        """Delete a schedule. Its jobs stay."""
        if not await self._access.rows(_DELETE, self._queue, schedule_name(name)):
            raise await self._missing(name)

    async def run_now(self, name: str) -> int:
        """Enqueue a job of a schedule now, even if it is paused; return the job's place.

        Its ticks do not change. The job's `scheduled_for` is the server's time.
        """
        stored = await self.show(name)
        if stored is None:
            raise await self._missing(name)
        has_slot = stored.key is not None and self._function != "sha256"
        slot = ring_slot(str(stored.key), self._function) if has_slot else None
        ((place,),) = await self._access.rows(_RUN, self._queue, name, slot)
        if place is None:
            raise await self._missing(name)
        return int(place)

    # -- internal ----------------------------------------------------------------------------------

    async def _lock(self, statements: SchemaStatements, name: str) -> Schedule | None:
        rows = await statements.rows(f"{_ONE} FOR NO KEY UPDATE", self._queue, name)
        return _schedule_of(self._queue, rows[0]) if rows else None

    async def _locked(self, statements: SchemaStatements, name: str) -> Schedule:
        stored = await self._lock(statements, name)
        if stored is None:
            raise await self._missing(name, statements)
        return stored

    async def _next(
        self, statements: SchemaStatements, timing: Timing, stored: Schedule | None
    ) -> int | None:
        """Return the next tick after the server's time, and after the last one of the schedule."""
        ((now,),) = await statements.rows(_NOW)
        last = stored.last_at if stored is not None else None
        return next(timing.after(now if last is None else max(now, int(last.timestamp()))), None)

    async def _missing(self, name: str, statements: SchemaStatements | None = None) -> Exception:
        names = await (statements or self._access).rows(_NAMES, self._queue)
        others = nearest(name, [row[0] for row in names])
        return bad("schedule", name, f"does not exist in the queue {self._queue}; {others}")

    def __repr__(self) -> str:
        return f"ScheduleAdmin({self._queue!r})"


def schedule_name(value: object) -> str:
    """Check the name of a schedule. Raises `ConfigError`."""
    name = name_text("schedule", value)
    if len(name.encode()) > LONGEST_NAME:
        raise bad("schedule", name, f"must be at most {LONGEST_NAME} bytes long in UTF-8")
    return name


def _timing(stored: Schedule) -> Timing:
    return Timing(stored.cron, stored.every, stored.timezone)


def _schedule_of(queue: str, row: Any) -> Schedule:
    values = [*row]
    times = [None if each is None else time_of(timestamp_of(each) * 1000) for each in values[10:13]]
    return Schedule(
        queue=queue,
        name=values[0],
        cron=values[1],
        every=None if values[2] is None else timedelta(seconds=values[2]),
        timezone=values[3],
        payload=json.loads(values[4]),
        key=values[5],
        headers=json.loads(values[6]),
        priority=values[7],
        catch_up=values[8],
        is_paused=values[9],
        next_at=None if values[9] else times[0],
        last_at=times[1],
        last_job=values[13],
        created_at=times[2] or time_of(0),
    )
