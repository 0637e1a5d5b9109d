"""Leases of jobs: the calls of a queue's functions, and their results.

1. The response to a claim may be lost. Its leases then expire, and count as attempts of their jobs.
2. Every column of a claim can be decoded, whatever a job contains: an error would lose the leases
   of the other jobs.
3. A settle identifies each lease by its number, and has a result for each. A lease that had ended
   is `lost`: nothing was stored for it.
4. A lane that another session has locked does not delay other lanes: its lease is `locked`. Nothing
   was stored for it, and it may be settled later. A call about one lease waits for the lock, for at
   most a quarter of a second.
"""

from __future__ import annotations

import os
import secrets
import socket
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, cast

from ..._core.checks import bad
from ..._core.classify import caused
from ..._core.errors import UnavailableError
from ..client.errors import sqlstate
from ..client.names import quoted
from ..records.values import milliseconds
from ..schema.contents import WITHOUT_LANE
from ..schema.opened import opened_schema

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from asyncpg.pool import PoolConnectionProxy

    from ..client.connections import Connections
    from .ring import SlotFunction
    from .ticks import CatchUp


# ruff: noqa: S608  # names of the schema, quoted


Action = Literal["keep", "free", "done", "nak", "fail", "bury"]
"""The action for a lease; see `settle_jobs` in the schema."""
Fate = Literal["kept", "freed", "empty", "waiting", "dead", "blocked", "parked", "lost", "locked"]
"""The result. `freed` has jobs left, `empty` has none."""


_MAY_WORK = """
SELECT bool_and(has_function_privilege(oid, 'EXECUTE')) FROM pg_proc
WHERE pronamespace = $1::text::regnamespace AND proname IN ('claim_jobs', 'settle_jobs')
"""
_NO_QUEUE = "PS010"
LOST_AMONG = 100
"""Keys and jobs to check for lost jobs; the monitor checks more."""
MOST_DUE = 1000
"""Maximum number of schedules that are read at a time."""
_LOCK_NOT_AVAILABLE = "55P03"
EXTENSIONS = 3
"""Extensions of a lease within its duration, so that two may fail."""
SHORTEST_LEASE = 0.1
"""Seconds of the shortest lease."""
REST = 1.0
"""The shortest time in seconds between two moves of automatic ranges."""


class LeasedJob(NamedTuple):
    """A job of a lease, as `claim_jobs` returns it."""

    lease: int
    lane: str | None
    """The key of its lane; `None` if the job has no key."""
    slot: int
    attempts: int
    """The number of leases of the lane's first job, including this one."""
    place: int
    key: str | None
    payload: bytes
    """JSON."""
    headers: str
    """A JSON object."""
    at: float
    """Milliseconds since the epoch; infinite for an infinite time."""
    is_alone: bool
    """Whether it must be handled by a process without any other lease."""


class DueSchedule(NamedTuple):
    """A schedule whose next tick is due, in seconds since the epoch."""

    name: str
    cron: str | None
    every: timedelta | None
    timezone: str
    catch_up: CatchUp
    key: str | None
    slot_function: SlotFunction
    revision: int
    due: int
    now: int
    """The server's time."""


class LeaseName(NamedTuple):
    """The identification of a lease."""

    number: int
    lane: str | None
    place: int
    """The place of its job, if it has no lane; otherwise of the job that an action is about."""


@dataclass(frozen=True, slots=True)
class Settlement:
    """The settlement of one lease."""

    lease: LeaseName
    action: Action
    done: Sequence[int] = ()
    """The places of jobs of its lane that were handled."""
    delay: float | None = None
    """Seconds, for `nak`."""
    attempts: int | None = None
    reason: str | None = None
    error: str | None = None


class QueueLeases:
    """Leases of one queue for one consumer. Methods suspend, and raise client errors."""

    def __init__(self, connections: Connections, options: QueueOptions) -> None:
        self._connections = connections
        self._name = options.schema
        self._queue = options.queue
        self._group = options.group
        self._consumer = options.consumer
        self._schema = quoted(options.schema)

    async def check(self) -> bool | None:
        """Return whether the queue is sticky; `None` if it does not exist.

        Raises `ConfigError` if the schema is missing, older or may not be used, or the role lacks
        the right to work.
        """
        async with self._connections.asking() as con:
            await opened_schema(con, self._name)
            if not await con.fetchval(_MAY_WORK, self._schema):
                role = await con.fetchval("SELECT current_user::text")
                rule = f"gives the role {role!r} no right to handle jobs; run `sluicegate pg install DSN"
                raise bad("schema", self._name, f"{rule} --schema {self._name}` with --work {role}")
            found: bool | None = await con.fetchval(
                f"SELECT sticky AND NOT ordering_required FROM {self._schema}.queue WHERE name = $1",
                self._queue,
            )
            return found

    async def claim(
        self, lanes: int, per: int, loose: int, most_bytes: int, seconds: float
    ) -> list[LeasedJob]:
        """Lease up to `lanes` keys with `per` jobs each, and `loose` jobs without a key, of at most
        `most_bytes` bytes; whatever its size, the first job of each of the two kinds.
        """
        rows = await self._fetch(
            "SELECT r_lease, r_lane, r_slot, r_attempts, r_place, r_key, "
            f"convert_to(r_payload, 'UTF8'), r_headers, {milliseconds('r_at')}, r_alone "
            f"FROM {self._schema}.claim_jobs($1, $2, $3, $4, $5, $6, $7, p_bytes => $8)",
            self._queue,
            self._group,
            self._consumer,
            lanes,
            per,
            loose,
            seconds,
            most_bytes,
        )
        return [LeasedJob(*row) for row in rows]

    async def settle(self, settlements: Sequence[Settlement]) -> dict[int, Fate]:
        """Settle leases; return the result of each by its number.

        This is one transaction, unless a row other than a lane is locked, such as a job's: then
        halves are settled by themselves, down to the lease with that row.
        """
        try:
            return await self._settle(self._connections, settlements)
        except Exception as error:
            if sqlstate(error) != _LOCK_NOT_AVAILABLE:
                raise
        if len(settlements) == 1:
            return {settlements[0].lease.number: "locked"}
        half = len(settlements) // 2
        return await self.settle(settlements[:half]) | await self.settle(settlements[half:])

    async def settle_one(self, settlement: Settlement) -> Fate:
        """Settle a lease; return the result.

        Suspends while its lane is locked, for at most a quarter of a second.
        """
        try:
            return await self.settle_on(self._connections, settlement)
        except Exception as error:
            if sqlstate(error) != _LOCK_NOT_AVAILABLE:
                raise
            return "locked"

    async def settle_on(
        self, connection: PoolConnectionProxy[Any] | Connections, settlement: Settlement
    ) -> Fate:
        """Like `settle_one`, in the transaction of a connection to the same database.

        Raises the client's error for a lane that stays locked: the transaction is to be rolled
        back.
        """
        fates = await self._settle(connection, [settlement], waits=True)
        return fates.get(settlement.lease.number, "lost")

    async def _settle(
        self,
        connection: PoolConnectionProxy[Any] | Connections,
        settlements: Sequence[Settlement],
        *,
        waits: bool = False,
    ) -> dict[int, Fate]:
        done = [(place, each.lease.number) for each in settlements for place in each.done]
        rows = await connection.fetch(
            f"SELECT * FROM {self._schema}.settle_jobs("
            "$1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, p_waits => $12)",
            self._queue,
            [each.lease.number for each in settlements],
            [each.lease.lane for each in settlements],
            [each.action for each in settlements],
            [each.lease.place for each in settlements],
            _column([each.delay for each in settlements]),
            _column([each.attempts for each in settlements]),
            _column([each.reason for each in settlements]),
            _column([each.error for each in settlements]),
            [place for place, _ in done],
            [lease for _, lease in done],
            waits,
        )
        return {row[0]: row[1] for row in rows}

    async def count_unsettled_on(
        self, connection: PoolConnectionProxy[Any], places: Sequence[int]
    ) -> int:
        """Return the number of jobs at these places, on a connection to the queue's database."""
        found: int = await connection.fetchval(
            f"SELECT count(*) FROM {self._schema}.job WHERE queue = $1 AND place = ANY ($2)",
            self._queue,
            list(places),
        )
        return found

    async def first_unsettled(
        self,
        lease: LeaseName,
        places: Sequence[int],
        connection: PoolConnectionProxy[Any] | None = None,
    ) -> int | None:
        """Return the first of these places of a lease that still has a job.

        Reads on the given connection to its database, or on its own. Suspends while a transaction
        that settles jobs under the lease commits, and raises the client's error after a quarter of a
        second.
        """
        if connection is None:
            async with self._connections.asking() as con:
                return await self.first_unsettled(lease, places, con)
        # waits for the lease's lock; only a later statement sees jobs that were settled meanwhile
        await self.settle_on(connection, Settlement(lease, "keep"))
        first: int | None = await connection.fetchval(
            f"SELECT min(place) FROM {self._schema}.job WHERE queue = $1 AND place = ANY ($2)",
            self._queue,
            list(places),
        )
        return first

    async def extend(
        self, leases: Collection[LeaseName], seconds: float
    ) -> dict[int, tuple[Fate, Sequence[int]]]:
        """Make these leases end in `seconds`; return by their numbers the result of each, `kept`,
        `lost` or `locked`, and the places of cancelled jobs.
        """
        rows = await self._fetch(
            f"SELECT * FROM {self._schema}.extend_leases($1, $2, $3, $4, $5)",
            self._queue,
            [each.number for each in leases],
            [each.lane for each in leases],
            [each.place for each in leases],
            seconds,
        )
        return {lease: (fate, cancelled or ()) for lease, fate, cancelled in rows}

    async def report_alive(self, seconds: float, *, balances: bool, pause: float) -> float | None:
        """Record that the consumer is alive for this many seconds, and let automatic ranges move.

        Ranges move at most every `pause` seconds. Returns the seconds until the next tick of a schedule.
        """
        ((_, to_tick),) = await self._fetch(
            f"SELECT {self._schema}.seen_consumer($1, $2, $3, $4), {self._to_tick}",
            self._queue,
            self._group,
            self._consumer,
            seconds,
        )
        if balances:
            await self._fetch(
                f"SELECT {self._schema}.balance_ranges($1, $2, $3)", self._queue, self._group, pause
            )
        return cast("float | None", to_tick)

    async def leave(self) -> None:
        """Record that the consumer has ended."""
        await self._fetch(
            f"SELECT {self._schema}.left_consumer($1, $2, $3)",
            self._queue,
            self._group,
            self._consumer,
        )

    async def has_ready(self) -> bool:
        """Return whether a lane, or a job without a lane, is due and not leased.

        This includes those that no claim finds, since another session has locked them.
        """
        (row,) = await self._fetch(
            f"""
            SELECT EXISTS (SELECT FROM {self._schema}.lane l WHERE l.queue = $1 AND l.state = 0
                AND l.lease IS NULL AND l.due <= clock_timestamp())
              OR EXISTS (SELECT FROM {self._schema}.lane l WHERE l.queue = $1 AND l.state = 0
                AND l.lease IS NOT NULL AND l.lease_until <= clock_timestamp())
              OR EXISTS (SELECT FROM {self._schema}.bell b WHERE b.queue = $1)
              OR EXISTS (SELECT FROM {self._schema}.job j WHERE j.queue = $1
                AND j.lease IS NOT NULL AND j.lease_until <= clock_timestamp())
              OR EXISTS (SELECT FROM {self._schema}.job j WHERE j.queue = $1
                AND j.due <= clock_timestamp())
              OR EXISTS (SELECT FROM {self._schema}.job j WHERE j.queue = $1 AND j.key IS NULL
                AND j.due IS NULL AND j.lease IS NULL AND j.state = 0 AND NOT (
                  SELECT q.ordering_required FROM {self._schema}.queue q WHERE q.name = $1))
            """,
            self._queue,
        )
        return bool(row[0])

    async def without_lane(self) -> int:
        """Return the number of keys with jobs that no claim finds, among the first ones."""
        rows = await self._fetch(
            WITHOUT_LANE.replace("{schema}", self._schema), LOST_AMONG, self._queue
        )
        return sum(row[1] for row in rows)

    async def state(self) -> tuple[bool, float | None]:
        """Return whether an operator has paused the queue, and the seconds until the next tick."""
        rows = await self._fetch(
            f"SELECT paused, {self._to_tick} FROM {self._schema}.queue WHERE name = $1", self._queue
        )
        return tuple(rows[0]) if rows else (False, None)

    # -- schedules ---------------------------------------------------------------------------------

    @property
    def _to_tick(self) -> str:
        return (
            f"(SELECT extract(epoch FROM min(s.next_at) - {self._schema}.schedule_now())::float8 "
            f"FROM {self._schema}.schedule s WHERE s.queue = $1 AND NOT s.paused)"
        )

    async def seconds_to_tick(self) -> float | None:
        """Return the seconds until the next tick of a schedule; `None` if there is none."""
        ((seconds,),) = await self._fetch(f"SELECT {self._to_tick}", self._queue)
        return cast("float | None", seconds)

    async def due_schedules(self, without: Sequence[str]) -> list[DueSchedule]:
        """Return the first schedules whose next tick is due, without those of these names."""
        rows = await self._fetch(
            "SELECT s.name, s.cron, s.every, s.timezone, s.catch_up, s.key, q.slot_function, "
            "s.revision, extract(epoch FROM s.next_at)::bigint, floor(extract(epoch FROM n.at))::bigint "
            f"FROM (SELECT {self._schema}.schedule_now() AS at OFFSET 0) n "
            f"JOIN {self._schema}.schedule s ON s.queue = $1 AND NOT s.paused AND s.next_at <= n.at "
            "AND s.name <> ALL ($2::text[]) "
            f"JOIN {self._schema}.queue q ON q.name = s.queue ORDER BY s.next_at LIMIT {MOST_DUE}",
            self._queue,
            without,
        )
        return [
            DueSchedule(*row)._replace(every=None if row[2] is None else timedelta(seconds=row[2]))
            for row in rows
        ]

    async def fire(
        self, schedule: DueSchedule, ticks: Sequence[int], following: int | None, slot: int | None
    ) -> bool:
        """Enqueue the jobs of these ticks, and set the next one; return whether this call did it."""
        ((has_fired,),) = await self._fetch(
            f"SELECT {self._schema}.fire_schedule($1, $2, $3, $4, $5, $6, $7)",
            self._queue,
            schedule.name,
            schedule.revision,
            schedule.due,
            ticks,
            following,
            slot,
        )
        return bool(has_fired)

    async def _fetch(self, query: str, *arguments: object) -> Sequence[Any]:
        try:
            return await self._connections.fetch(query, *arguments)
        except Exception as error:
            if sqlstate(error) != _NO_QUEUE:
                raise
            text = f"the queue {self._queue!r} no longer exists; create it with `sluicegate queue create`"
            raise caused(UnavailableError(text), error)  # noqa: B904  # it has its cause


def _column(values: Sequence[object]) -> Sequence[object] | None:
    """Return `None` for values that are all `None`: to the queue's functions it is the same."""
    return None if values.count(None) == len(values) else values


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueOptions:
    """The jobs to read, and how to read them."""

    queue: str
    schema: str
    group: str
    consumer: str
    lease: float
    per_key: int
    poll: float
    back_after: float
    ends: bool

    def __post_init__(self) -> None:
        if self.lease < SHORTEST_LEASE:
            raise bad("lease", self.lease, f"must be at least {SHORTEST_LEASE} s")

    @property
    def extend_every(self) -> float:
        """Seconds between extensions of leases."""
        return self.lease / EXTENSIONS


def own_name() -> str:
    """Return a unique name by which operators can find the process."""
    return f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(3)}"


class Member:
    """Reports this process to the queue as alive. Automatic ranges of slots follow the members."""

    def __init__(
        self,
        queue: QueueLeases,
        options: QueueOptions,
        expect_tick: Callable[[float | None], None],
    ) -> None:
        self._queue = queue
        self._options = options
        self._expect_tick = expect_tick
        self._is_sticky: bool | None = None

    @property
    def has_joined(self) -> bool:
        """Whether the queue was found."""
        return self._is_sticky is not None

    @property
    def every(self) -> float:
        """Seconds between two calls of `tell`."""
        every = self._options.extend_every
        return min(every, REST) if self._is_sticky else every

    async def join(self) -> None:
        """Find the queue, and become a member. Raises `ConfigError` if it does not exist, and
        client errors.
        """
        found = await self._queue.check()
        if found is None:
            create = f"`sluicegate queue create {self._options.queue}`"
            raise bad("queue", self._options.queue, f"does not exist; create it with {create}")
        self._is_sticky = found
        await self.tell()

    async def tell(self) -> None:
        """Report that this process is alive. Raises client errors."""
        to_tick = await self._queue.report_alive(
            self._options.lease, balances=bool(self._is_sticky), pause=REST
        )
        self._expect_tick(to_tick)

    async def leave(self) -> None:
        """End the membership. Raises client errors."""
        await self._queue.leave()
