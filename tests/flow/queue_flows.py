"""A queue whose jobs flow into a table of its own schema, and SQL checks of the rows there."""

from __future__ import annotations

import asyncio
import json
import sys
from asyncio.subprocess import PIPE
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pytest
from tests.children import child
from tests.postgres.access_help import access_from
from tests.postgres.queues.jobs_help import create
from tests.postgres.queues.source.kills_help import (
    CROSSED,
    CROSSED_IN_TRANSACTIONS,
    LEFT,
    WITHIN,
    Member,
    Queue,
    Sent,
)
from tests.postgres.streams.log_pool import borrowed

from sluicegate import Backoff, RetryPolicy, flow
from sluicegate.postgres import PostgresEffects, PostgresQueueSource, PostgresSink

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from sluicegate import Message
    from sluicegate.postgres import PostgresAccess

    Hook = Callable[[Message], Awaitable[object]]

Kind = Literal["rows", "effects"]
KINDS: tuple[Kind, ...] = ("rows", "effects")
LONG = 60.0
"""Seconds that no test waits for."""
LEASE = 1.0
PROGRAM = Path(__file__).with_name("queue_child.py")
COLUMNS = ("worker", "key", "place", "word")
TABLES = """
CREATE TABLE {schema}.effect (
  n bigserial, worker text, key text, place bigint, word text CHECK (word <> 'refused'));
CREATE TABLE {schema}.sent (place bigint, key text, tx int, began int, ended int);
CREATE INDEX ON {schema}.effect (place);
"""
INSERT = "INSERT INTO {schema}.effect (worker, key, place, word) VALUES ($1, $2, $3, $4)"
LOST = """
SELECT count(*) FROM {schema}.sent s
WHERE NOT EXISTS (SELECT FROM {schema}.effect e WHERE e.place = s.place)
"""
TWICE = "SELECT count(*) - count(DISTINCT place) FROM {schema}.effect"


def with_kinds(*cases: Any) -> list[Any]:
    """Parameters of a test, the kind first: each case with the kinds in turn in the suite, and with
    the other one among the long tests.
    """
    return [
        pytest.param(
            kind,
            *(case if isinstance(case, tuple) else (case,)),
            marks=() if number % 2 == KINDS.index(kind) else pytest.mark.long,
        )
        for number, case in enumerate(cases)
        for kind in KINDS
    ]


class FlowQueue(Queue):
    """A queue `q` beside a table `effect`."""

    def source(self, dsn: str | PostgresAccess = "", **options: Any) -> PostgresQueueSource:
        """A source that ends when the queue is empty, unless the options say otherwise."""
        given: dict[str, Any] = {
            "schema": self.log.schema,
            "ends": True,
            "poll": 0.02,
            "lease": LONG,
            **options,
        }
        return PostgresQueueSource(access_from(dsn or self.log.dsn, given), queue="q", **given)

    def sink(self, dsn: str | PostgresAccess = "", **options: Any) -> PostgresSink:
        """A sink that writes rows into the table."""
        given: dict[str, Any] = {
            "table": "effect",
            "schema": self.log.schema,
            "columns": COLUMNS,
            **options,
        }
        return PostgresSink(access_from(dsn or self.log.dsn, given), **given)

    def flow(
        self,
        kind: Kind,
        hook: Hook | None = None,
        *,
        source: PostgresQueueSource | None = None,
        sink: Any = None,
        worker: str = "here",
        **options: Any,
    ) -> flow.TransactionalPipe:
        """A flow from the queue into the table. A result of the hook is the result of the job;
        `None` writes its row.
        """

        async def rows(message: Message) -> object:
            answer = None if hook is None else await hook(message)
            return row_of(message, worker) if answer is None else answer

        async def handle(message: Message) -> object:
            row = row_of(message, worker)
            await message.connection.execute(INSERT.format(schema=self.log.sql), *row)
            return None if hook is None else await hook(message)

        if sink is None:
            sink = self.sink() if kind == "rows" else PostgresEffects(self.log.dsn)
        given: dict[str, Any] = {
            "retry": RetryPolicy(backoff=Backoff(base=0.01, longest=0.1, jitter="none")),
            **options,
        }
        transform = rows if kind == "rows" else handle
        return flow.transaction(source or self.source(), sink, transform, **given)

    async def worker(self, kind: str, **options: Any) -> Member:
        """Start a process with a flow; return once it has opened the queue."""
        name = f"{kind}-{next(self._names)}"
        given = {"dsn": self.log.dsn, "schema": self.log.schema, "consumer": name, "kind": kind}
        command = (str(PROGRAM), json.dumps({"lease": LEASE, **given, **options}))
        process = await self._stack.enter_async_context(
            child(sys.executable, *command, stdin=PIPE, stdout=PIPE)
        )
        joined = "SELECT -count(*) FROM {schema}.queue_member WHERE consumer = $1"
        await self.until(joined, name, is_at_most=-1)
        return Member(process, name)

    async def places(self) -> list[int]:
        """The places of the rows, in write order."""
        rows = await self.con.fetch(f"SELECT place FROM {self.log.sql}.effect ORDER BY n")
        return [row["place"] for row in rows]

    async def waiting(self) -> list[int]:
        """The places of the jobs in the queue."""
        rows = await self.con.fetch(f"SELECT place FROM {self.log.sql}.job ORDER BY place")
        return [row["place"] for row in rows]

    async def letters(self) -> list[int]:
        """The places of the dead letters."""
        query = f"SELECT place FROM {self.log.sql}.finished_job WHERE outcome = 'dead' ORDER BY 1"
        return [row["place"] for row in await self.con.fetch(query)]

    async def until_waits(self, kind: str, name: str = "%") -> None:
        """Wait until a session of this application name waits for a lock of this kind."""
        waits = (
            "SELECT -count(*) FROM pg_locks JOIN pg_stat_activity USING (pid) "
            "WHERE NOT granted AND locktype = $1 AND application_name LIKE $2"
        )
        await self.until(waits, kind, name, is_at_most=-1)

    async def assert_in_order(self) -> None:
        """Check that no job is lost, and that the first rows of each key are in order."""
        await self.until(LEFT)
        await self.con.execute(f"TRUNCATE {self.log.sql}.sent")
        await self.con.copy_records_to_table(
            "sent", schema_name=self.log.schema, records=self.sent, columns=Sent._fields
        )
        assert await self.ask(LOST) == 0
        assert await self.ask(CROSSED, table="effect") == 0
        assert await self.ask(CROSSED_IN_TRANSACTIONS, table="effect") == 0

    async def assert_exact(self) -> None:
        """Check that each job has one row, and that rows of a key are in order."""
        await self.assert_in_order()
        assert await self.ask(TWICE) == 0
        assert await self.ask("SELECT count(*) FROM {schema}.effect") == len(self.sent)


def row_of(message: Message, worker: str) -> tuple[str, object, int, str]:
    """The row of a job."""
    assert isinstance(message.value, bytes)
    return worker, message.key, message.offset, str(json.loads(message.value))


@asynccontextmanager
async def flow_queue(
    dsn: str, *, within: float | None = WITHIN, **options: Any
) -> AsyncIterator[FlowQueue]:
    """A new queue in its own schema. A lost lease does not make a job poison unless the options say
    so. `within` limits the duration of the test, in seconds.
    """
    async with borrowed(dsn) as log, asyncio.timeout(within):
        async with AsyncExitStack() as stack:
            con = await stack.enter_async_context(log.connected())
            await create(con, log, "q", **{"max_attempts": 1_000_000, **options})
            await con.execute(TABLES.format(schema=log.sql))
            yield FlowQueue(log, con, stack)
        async with log.connected() as con:
            await con.execute(f"DROP TABLE {log.sql}.effect, {log.sql}.sent")


@asynccontextmanager
async def running(pipe: flow.TransactionalPipe | flow.Pipe) -> AsyncIterator[None]:
    """Run a flow inside the block, and stop it at the end."""
    task = asyncio.create_task(pipe.run())
    try:
        yield
        pipe.stop()
        await task
    finally:
        task.cancel()
        await asyncio.wait([task])
