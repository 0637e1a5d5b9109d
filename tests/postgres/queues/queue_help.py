"""A test's own queue: enqueue, claim, settle and extend in SQL, at times set by the test.

Times are seconds since `START`; a lease of 30 seconds claimed at 0 ends at 30.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.postgres.streams.log_help import Log

START = datetime(2040, 1, 1, tzinfo=UTC)
LEASE = 30.0
"""Default duration of a claim's leases, in seconds."""
_NUMBERS = itertools.count()


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


class Job(NamedTuple):
    """A row returned by a claim."""

    lease: int
    lane: str | None
    slot: int
    attempts: int
    place: int
    key: str | None
    payload: Any
    headers: Any
    at: datetime
    alone: bool


@dataclass(frozen=True)
class Queue:
    """A queue by its name, in an installed schema."""

    log: Log
    name: str

    @property
    def sql(self) -> str:
        """The quoted schema."""
        return self.log.sql

    async def enqueue(self, con: Any, *jobs: tuple[str | None, Any], **columns: Any) -> None:
        """Insert jobs, each a key and a payload, with one statement; all have the same other
        columns.
        """
        names = "".join(f", {name}" for name in columns)
        values = "".join(f", ${n}" for n in range(4, 4 + len(columns)))
        await con.execute(
            f"INSERT INTO {self.sql}.job (queue, key, payload{names}) "
            f"SELECT $1, u.key, u.payload::jsonb{values} "
            "FROM unnest($2::text[], $3::text[]) WITH ORDINALITY AS u (key, payload, n) ORDER BY u.n",
            self.name,
            [key for key, _ in jobs],
            [json.dumps(payload) for _, payload in jobs],
            *columns.values(),
        )

    async def claim(
        self,
        con: Any,
        consumer: str = "one",
        *,
        lanes: int = 10,
        per: int = 10,
        loose: int = 10,
        seconds: float = LEASE,
        now: float = 0,
        group: str = "g",
    ) -> list[Job]:
        rows = await con.fetch(
            f"SELECT * FROM {self.sql}.claim_jobs($1, $2, $3, $4, $5, $6, $7, $8)",
            *(self.name, group, consumer, lanes, per, loose, seconds, at(now)),
        )
        return [
            Job(*row.values())._replace(
                payload=json.loads(row["r_payload"]), headers=json.loads(row["r_headers"])
            )
            for row in rows
        ]

    async def settle(
        self,
        con: Any,
        jobs: Sequence[Job],
        action: str = "free",
        *,
        done: int | None = None,
        now: float = 0,
        delay: float | None = None,
        attempts: int | None = None,
        reason: str | None = None,
        waits: bool = False,
    ) -> list[str]:
        """Settle the leases of these jobs, of which the first `done` were handled, by default all.

        With `nak`, `fail` and `bury` the default is none, and the action applies to the next job.
        Returns the results in key order. With `waits` lanes that are locked are waited for.
        """
        leases: dict[int, list[Job]] = {}
        for job in jobs:
            leases.setdefault(job.lease, []).append(job)
        if done is None:
            done = len(jobs) if action in {"free", "keep"} else 0
        handled = [
            job for each in leases.values() if each[0].lane is not None for job in each[:done]
        ]
        about = [each[min(done, len(each) - 1)] for each in leases.values()]
        is_done = action == "free" and done > 0
        rows = await con.fetch(
            f"SELECT r_fate FROM {self.sql}.settle_jobs"
            "($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13)",
            self.name,
            [*leases],
            [job.lane for job in about],
            ["done" if is_done and job.lane is None else action for job in about],
            [job.place for job in about],
            [delay] * len(about),
            [attempts] * len(about),
            [reason] * len(about),
            [None] * len(about),
            [job.place for job in handled],
            [job.lease for job in handled],
            at(now),
            waits,
        )
        return [row["r_fate"] for row in rows]

    async def extend(
        self, con: Any, jobs: Sequence[Job], *, seconds: float = LEASE, now: float = 0
    ) -> set[int]:
        """Extend the leases of these jobs; return the numbers of the leases that had not ended."""
        first = {job.lease: job for job in reversed(jobs)}
        rows = await con.fetch(
            f"SELECT * FROM {self.sql}.extend_leases($1, $2, $3, $4, $5, $6)",
            self.name,
            [*first],
            [job.lane for job in first.values()],
            [job.place for job in first.values()],
            *(seconds, at(now)),
        )
        return {row[0] for row in rows if row[1] == "kept"}

    async def call(self, con: Any, function: str, *values: Any) -> Any:
        """Call another function with the queue's name as the first argument; return its result."""
        places = ", ".join(f"${n}" for n in range(1, len(values) + 2))
        return await con.fetchval(f"SELECT {self.sql}.{function}({places})", self.name, *values)

    async def assign(self, con: Any, *ranges: tuple[int, int, str], group: str = "g") -> None:
        """Assign ranges of slots to consumers."""
        columns = [list(column) for column in zip(*ranges, strict=True)]
        await self.call(con, "assign_ranges", group, *columns, False)

    async def count(self, con: Any, table: str) -> int:
        return int(
            await con.fetchval(
                f"SELECT count(*) FROM {self.sql}.{table} WHERE queue = $1", self.name
            )
        )


async def queue(con: Any, log: Log, **settings: Any) -> Queue:
    """Create a queue with a unique name."""
    made = Queue(log, f"q{next(_NUMBERS)}")
    columns = "".join(f", {name}" for name in settings)
    values = "".join(f", ${n}" for n in range(2, 2 + len(settings)))
    await con.execute(
        f"INSERT INTO {log.sql}.queue (name{columns}) VALUES ($1{values})",
        made.name,
        *settings.values(),
    )
    return made


def payloads(jobs: Sequence[Job]) -> list[Any]:
    return [job.payload for job in jobs]


async def waits_for_a_lock(log: Log, con: Any) -> None:
    """Return when the connection's statement waits for a lock."""
    waits = "SELECT FROM pg_stat_activity WHERE pid = $1 AND wait_event_type = 'Lock'"
    async with asyncio.timeout(60.0), log.connected() as other:
        while not await other.fetch(waits, con.get_server_pid()):
            pass
