"""Jobs of a queue, their consumers in separate processes, and SQL checks of their effects.

The times of a `sent` row are steps of the test: a job whose `ended` is below the `began` of another
was committed before that one was inserted.

White box: the channel of notifications.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import signal
import sys
from asyncio.subprocess import PIPE
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from tests.children import child
from tests.kafka.source.child_help import Child
from tests.postgres.queues.jobs_help import create

from sluicegate.postgres.queues.enqueue import queue_channel

if TYPE_CHECKING:
    import random
    from collections.abc import AsyncIterator

    from tests.postgres.streams.log_help import Log

PROGRAM = Path(__file__).with_name("kills_child.py")
LEASE = 0.5
WITHIN = 60.0
PRODUCERS = 4

TABLES = """
CREATE TABLE {schema}.effect (n bigserial, worker text, key text, place bigint);
CREATE TABLE {schema}.fenced (n bigserial, worker text, key text, place bigint, lease bigint);
CREATE TABLE {schema}.sent (place bigint, key text, tx int, began int, ended int);
CREATE INDEX ON {schema}.effect (place);
CREATE INDEX ON {schema}.fenced (place);
"""
LOST = """
SELECT count(*) FROM {schema}.sent s
WHERE NOT EXISTS (SELECT FROM {schema}.effect e WHERE e.place = s.place)
  OR s.key IS NOT NULL AND NOT EXISTS (SELECT FROM {schema}.fenced f WHERE f.place = s.place)
"""
"""Jobs without an effect, or without one under a lease."""
CROSSED = """
SELECT count(*) FROM (
  SELECT s.began > min(s.ended) OVER later AS is_crossed FROM {schema}.sent s
  JOIN (SELECT place, min(n) AS n FROM {schema}.{table} GROUP BY place) AS first USING (place)
  WHERE s.key IS NOT NULL
  WINDOW later AS (
    PARTITION BY s.key ORDER BY first.n ROWS BETWEEN 1 FOLLOWING AND UNBOUNDED FOLLOWING)) AS pairs
WHERE is_crossed
"""
"""Jobs whose first effect precedes that of a job committed before they were inserted."""
CROSSED_IN_TRANSACTIONS = """
SELECT count(*) FROM (
  SELECT first.n < lag(first.n) OVER (PARTITION BY s.key, s.tx ORDER BY s.began) AS is_crossed
  FROM {schema}.sent s
  JOIN (SELECT place, min(n) AS n FROM {schema}.{table} GROUP BY place) AS first USING (place)
  WHERE s.key IS NOT NULL) AS pairs
WHERE is_crossed
"""
STALE = """
SELECT count(*) FROM (
  SELECT f.lease < lag(f.lease) OVER (PARTITION BY f.key ORDER BY f.n) AS is_stale
  FROM {schema}.fenced f) AS pairs
WHERE is_stale
"""
"""Effects under an older lease that follow one under a newer lease of their key."""
LEFT = """
SELECT (SELECT count(*) FROM {schema}.job) + (SELECT count(*) FROM {schema}.lane)
  + (SELECT count(*) FROM {schema}.bell)
"""


class Sent(NamedTuple):
    """A committed job."""

    place: int
    key: str | None
    tx: int
    began: int
    ended: int


class Member(Child):
    """A consumer process."""

    def __init__(self, process: Any, name: str) -> None:
        super().__init__(process)
        self.name = name

    async def ready(self) -> None:
        """Return once it consumes."""
        await self.until(lambda told: "ready" in told)

    async def told(self, what: str) -> Any:
        """Return its next report of this kind."""
        return (await self.until(lambda told: what in told))[what]

    def answer(self) -> None:
        """Send it a line."""
        assert self.process.stdin is not None
        self.process.stdin.write(b"\n")

    def freeze(self) -> None:
        self.process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    async def ended(self, sign: signal.Signals | None = None) -> int:
        """Send it a signal, if one is given, and return its exit code."""
        if sign is not None:
            self.process.send_signal(sign)
        return await self.process.wait()


class Queue:
    """A queue `q` with tables of effects."""

    def __init__(self, log: Log, con: Any, stack: AsyncExitStack) -> None:
        self.log = log
        self.con = con
        self.sent: list[Sent] = []
        self._stack = stack
        self._names = itertools.count(1)
        self._steps = itertools.count(1)
        self._txs = itertools.count(1)

    async def member(self, **options: Any) -> Member:
        """Start a consumer process."""
        name = f"w{next(self._names)}"
        given = {"dsn": self.log.dsn, "schema": self.log.schema, "consumer": name, **options}
        command = (PROGRAM, json.dumps({"lease": LEASE, **given}))
        process = await self._stack.enter_async_context(
            child(sys.executable, *map(str, command), stdin=PIPE, stdout=PIPE)
        )
        return Member(process, name)

    async def enqueue(self, key: str | None, *payloads: Any) -> list[int]:
        """Enqueue jobs, one transaction each; return their places."""
        return [await self._insert(self.con, key, payload, next(self._txs)) for payload in payloads]

    async def notify(self) -> None:
        """Wake the consumers of the queue."""
        await self.con.execute("SELECT pg_notify($1, '')", queue_channel(self.log.schema))

    async def _insert(self, con: Any, key: str | None, payload: Any, tx: int) -> int:
        began = next(self._steps)
        place = int(
            await con.fetchval(
                f"INSERT INTO {self.log.sql}.job (queue, key, payload) "
                "VALUES ('q', $1, $2::text::jsonb) RETURNING place",
                key,
                json.dumps(payload),
            )
        )
        self.sent.append(Sent(place, key, tx, began, next(self._steps)))
        return place

    async def produce(self, steps: int, chance: random.Random) -> None:
        """Insert this many jobs, in overlapping transactions of several producers: with keys of the
        producer's own, with shared keys, or without a key. Some are rolled back.
        """
        async with AsyncExitStack() as stack:
            cons = [await stack.enter_async_context(self.log.connected()) for _ in range(PRODUCERS)]
            open_ones: dict[int, tuple[int, list[Sent]]] = {}
            for _ in range(steps):
                number = chance.randrange(PRODUCERS)
                if number not in open_ones:
                    await cons[number].execute("BEGIN")
                    open_ones[number] = (next(self._txs), [])
                tx, jobs = open_ones[number]
                key = chance.choice([f"own-{number}-{chance.randrange(3)}", "shared", "both", None])
                await self._insert(cons[number], key, 1, tx)
                jobs.append(self.sent.pop())
                if chance.random() < 0.4:
                    await self._end(cons[number], *open_ones.pop(number), chance)
            for number, made in open_ones.items():
                await self._end(cons[number], *made, chance)

    async def _end(self, con: Any, tx: int, jobs: list[Sent], chance: random.Random) -> None:
        if chance.random() < 0.1:
            await con.execute("ROLLBACK")
            return
        await con.execute("COMMIT")
        ended = next(self._steps)
        self.sent += [each._replace(ended=ended) for each in jobs]

    async def ask(self, query: str, *values: object, **names: str) -> int:
        """Query a number."""
        return int(await self.con.fetchval(query.format(schema=self.log.sql, **names), *values))

    async def until(self, query: str, *values: object, is_at_most: int = 0) -> None:
        """Wait until the result of a query is at most this number."""
        slow = f"SELECT found FROM pg_sleep(0.02), LATERAL ({query}) AS asked (found)"
        try:
            async with asyncio.timeout(WITHIN):
                while await self.ask(slow, *values) > is_at_most:
                    pass
        except TimeoutError:
            pytest.fail(f"{await self.ask(query, *values)} of: {query}\n{await self._state()}")

    async def handled(self, *, but: int = 0) -> None:
        """Wait until all jobs, or all but this many, have left the queue."""
        await self.until("SELECT count(*) FROM {schema}.job", is_at_most=but)

    async def without_lease(self, member: Member) -> None:
        """Wait until other processes have all leases of this process."""
        await self.until(
            "SELECT (SELECT count(*) FROM {schema}.lane WHERE owner = $1) "
            "+ (SELECT count(*) FROM {schema}.job WHERE owner = $1)",
            member.name,
        )

    async def _state(self) -> str:
        rows = await self.con.fetch(f"SELECT l.* FROM {self.log.sql}.lane l LIMIT 20")
        return "\n".join(str(dict(row)) for row in rows)

    async def reconnect(self) -> None:
        """Connect again after a restart of the server."""
        self.con = await self._stack.enter_async_context(self.log.connected())

    async def assert_exact(self) -> None:
        """Check that no job is lost, and that those of a key had their effects in order, under one
        lease at a time.
        """
        await self.until(LEFT)
        await self.con.execute(f"TRUNCATE {self.log.sql}.sent")
        await self.con.copy_records_to_table(
            "sent", schema_name=self.log.schema, records=self.sent, columns=Sent._fields
        )
        assert await self.ask(LOST) == 0
        for table in ("effect", "fenced"):
            assert await self.ask(CROSSED, table=table) == 0
            assert await self.ask(CROSSED_IN_TRANSACTIONS, table=table) == 0
        assert await self.ask(STALE) == 0
        assert await self.ask("SELECT count(*) FROM {schema}.finished_job") == 0

    async def effects(self, *places: int) -> list[tuple[str, int]]:
        """The workers and places of the effects, in order; of all jobs or of these."""
        rows = await self.con.fetch(
            f"SELECT worker, place FROM {self.log.sql}.effect "
            "WHERE cardinality($1::bigint[]) = 0 OR place = ANY ($1) ORDER BY n",
            places,
        )
        return [(row["worker"], row["place"]) for row in rows]

    async def lane(self, key: str) -> Any:
        """The row of a key, or `None`."""
        return await self.con.fetchrow(f"SELECT * FROM {self.log.sql}.lane WHERE key = $1", key)


@asynccontextmanager
async def queue(log: Log, **options: Any) -> AsyncIterator[Queue]:
    """A new queue; a lost lease does not make a job poison unless the options say so."""
    async with AsyncExitStack() as stack:
        con = await stack.enter_async_context(log.connected())
        await create(con, log, "q", **{"max_attempts": 1_000_000, **options})
        await con.execute(TABLES.format(schema=log.sql))
        yield Queue(log, con, stack)
    async with log.connected() as con:
        await con.execute(f"DROP TABLE {log.sql}.effect, {log.sql}.fenced, {log.sql}.sent")


async def stop(*members: Member) -> None:
    """Stop processes by SIGTERM and wait for their orderly end."""
    for member in members:
        member.process.send_signal(signal.SIGTERM)
    for member in members:
        await member.process.communicate()
        assert member.process.returncode in (0, -signal.SIGTERM), "the second: it had not begun yet"
