"""Outages of brokers and databases under a pipe: nothing is lost, and only rows that the report
counts as `unknown` are repeated.

White box: the type of a pipe's report is private.
"""

from __future__ import annotations

import asyncio
import random
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, NamedTuple

import asyncpg
import pytest
from kafka_piping import PipeMember, kafka_source, pipe_member
from pipe_child import COLUMNS, key_of, row_of
from table_help import Written, assert_in_order, table, written
from tests.kafka.source.kafka_help import fill, new_name, new_topic, stored
from tests.kafka.source.proxy_help import proxied as proxied_broker
from tests.kafka.source.storm_help import log_lines, run
from tests.postgres.sink.postgres_help import proxied, role, until_blocked

from sluicegate import Batcher, Limits, Retry, stack
from sluicegate.consumer import Commits, Position, TopicPartition
from sluicegate.testing import embedded_postgres
from sluicegate.testing.servers.require import there_or_skip

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

    from tests.kafka.source.own_help import OwnKafka
    from tests.postgres.sink.postgres_help import Database

    from sluicegate.flow.pipe import PipeReport
    from sluicegate.testing import EmbeddedKafka, EmbeddedPostgres

COUNT = 600


@pytest.fixture(scope="module")
def own_postgres() -> Iterator[EmbeddedPostgres]:
    """A server that tests may stop and kill; they leave it running."""
    with there_or_skip("postgres", embedded_postgres({"fsync": "off"})) as server:
        yield server


class Piped(NamedTuple):
    """A pipe into a table, and the end position of its records."""

    member: PipeMember
    db: Database
    broker: EmbeddedKafka
    topic: str
    group: str

    async def more(self) -> None:
        """Append records; return when their rows are written and their positions stored."""
        partition = TopicPartition(self.topic, 0)
        at = (await stored(self.broker, self.group)).get(partition, Position(0)).offset
        await fill(self.broker, self.topic, COUNT, keys=50)
        await self.member.watch.stored(at + COUNT)

    async def acknowledged(self, count: int) -> None:
        """Return at the first commit after this many records were acknowledged."""
        stats = self.member.pipe.stats
        await self.member.watch.news.until(lambda: stats().source.counts.acked >= count)

    async def ended(self, count: int) -> tuple[list[Written], PipeReport]:
        """Stop the pipe; return its report and the rows, which must be complete and in order."""
        report = await self.member.stop()
        rows = await written(self.db)
        assert report.complete
        report.batcher.verify()
        assert {row.at for row in rows} == set(range(count))
        assert_in_order(rows)
        assert len(rows) - count <= report.batcher.tally.unknown
        assert report.batcher.tally.delivered == len({(row.part, row.at) for row in rows})
        return rows, report


@asynccontextmanager
async def piped(
    broker: EmbeddedKafka, db: Database, dsn: str | None = None, *, bootstrap: str = ""
) -> AsyncIterator[Piped]:
    """A pipe from a new topic into the table."""
    topic, group = await new_topic(broker), new_name("group")
    source = kafka_source(
        topic,
        group,
        bootstrap or broker.bootstrap,
        session_timeout=30,
        rebalance_timeout=30,
    )
    batcher = Batcher(
        stack(db.sink(COLUMNS, dsn=dsn), Retry()),
        key=key_of,
        limits=Limits(max_items=40, max_delay=0.01, workers=4),
    )
    async with pipe_member(
        source, batcher, transform=row_of, commits=Commits(every=0.01)
    ) as member:
        yield Piped(member, db, broker, topic, group)


async def blocked(db: Database) -> None:
    """Return when a write waits for the lock on the table."""
    await until_blocked(db.con, db.table)


@pytest.mark.long
@pytest.mark.parametrize("how", ["kill", "stop"])
def test_a_database_that_restarts_costs_no_row(
    broker: EmbeddedKafka, own_postgres: EmbeddedPostgres, how: str
) -> None:
    """Rows whose write was cut are `unknown` and are sent again before others of their keys."""

    async def scenario() -> None:
        async with table(own_postgres.dsn) as db, piped(broker, db) as pipe, log_lines() as log:
            await pipe.more()
            await db.con.execute(f"BEGIN; LOCK TABLE {db.table} IN EXCLUSIVE MODE")
            filling = asyncio.create_task(pipe.more())
            await blocked(db)
            down = own_postgres.kill if how == "kill" else own_postgres.stop
            await asyncio.to_thread(down)
            await log.wait("has been unavailable")
            assert "unavailable" in str(pipe.member.pipe.explain())
            await asyncio.to_thread(own_postgres.start)
            await filling
            _, report = await pipe.ended(2 * COUNT)
            assert report.batcher.tally.unknown

    run(scenario())


def test_sessions_that_are_terminated_in_the_middle_of_writes_cost_no_row(
    broker: EmbeddedKafka, own_postgres: EmbeddedPostgres
) -> None:
    """Each write at the destination waits for a lock when its session is terminated."""

    async def scenario() -> None:
        async with AsyncExitStack() as stack:
            db = await stack.enter_async_context(table(own_postgres.dsn))
            writer = await stack.enter_async_context(role(db))
            await db.con.execute(f"GRANT USAGE ON SEQUENCE {db.table}_n_seq TO {writer.name}")
            pipe = await stack.enter_async_context(piped(broker, db, writer.dsn))
            await pipe.more()
            for _ in range(2):
                async with db.con.transaction():
                    await db.con.execute(f"LOCK TABLE {db.table} IN EXCLUSIVE MODE")
                    filling = asyncio.create_task(pipe.more())
                    await blocked(db)
                    await writer.end_sessions()
                await filling
            await pipe.ended(3 * COUNT)

    run(scenario())


def test_lost_answers_repeat_only_rows_that_are_counted_as_unknown(
    broker: EmbeddedKafka, own_postgres: EmbeddedPostgres
) -> None:
    """The rows are in the table, but the pipe cannot know it."""

    async def scenario() -> None:
        async with (
            table(own_postgres.dsn) as db,
            proxied(own_postgres.dsn) as (proxy, through),
            piped(broker, db, through) as pipe,
        ):
            for _ in range(3):
                proxy.cut_answer = "INSERT"
                await pipe.more()
            assert proxy.cuts == 3
            rows, report = await pipe.ended(3 * COUNT)
            assert 0 < len(rows) - 3 * COUNT == report.batcher.tally.unknown

    run(scenario())


def test_a_broker_that_is_away_for_a_while_costs_no_row_and_repeats_none(
    broker: EmbeddedKafka, own_postgres: EmbeddedPostgres
) -> None:
    """Rows written during the outage are committed after it. consumer/C:C6."""

    async def scenario() -> None:
        async with proxied_broker(broker) as proxy:

            async def down() -> None:
                proxy.refuse()

            await _broker_outage(broker, own_postgres, down, proxy.listen, proxy.bootstrap)

    run(scenario())


@pytest.mark.soak
@pytest.mark.parametrize("turn", range(3))
def test_a_broker_that_is_killed_and_started_again_costs_no_row_and_repeats_none(
    own_broker: OwnKafka, own_postgres: EmbeddedPostgres, turn: int
) -> None:
    """As above, with a broker that must recover its log."""

    async def scenario() -> None:
        async def down() -> None:
            await asyncio.to_thread(own_broker.kill)

        async def up() -> None:
            await asyncio.to_thread(own_broker.start)

        await _broker_outage(own_broker, own_postgres, down, up)

    run(scenario())


async def _broker_outage(
    broker: EmbeddedKafka,
    postgres: EmbeddedPostgres,
    down: Callable[[], Awaitable[None]],
    up: Callable[[], Awaitable[None]],
    bootstrap: str = "",
) -> None:
    """Stop the broker during writes, which end while it is down."""
    async with (
        table(postgres.dsn) as db,
        piped(broker, db, bootstrap=bootstrap) as pipe,
        log_lines() as log,
    ):
        await pipe.more()
        async with db.con.transaction():
            await db.con.execute(f"LOCK TABLE {db.table} IN EXCLUSIVE MODE")
            await fill(broker, pipe.topic, COUNT, keys=50)
            await blocked(db)
            await down()
        await log.wait("no broker can be reached")
        await up()
        await log.wait("delivers again")
        await pipe.member.watch.stored(2 * COUNT)
        rows, _ = await pipe.ended(2 * COUNT)
        assert len(rows) == 2 * COUNT


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(6))
def test_outages_of_every_kind_one_after_another_cost_no_row(
    broker: EmbeddedKafka, own_postgres: EmbeddedPostgres, seed: int
) -> None:
    """At random moments, while rows are written."""
    chance = random.Random(seed)

    async def scenario() -> None:
        async with (
            table(own_postgres.dsn) as db,
            proxied(own_postgres.dsn) as (proxy, through),
            proxied_broker(broker) as cuts,
            piped(broker, db, through, bootstrap=cuts.bootstrap) as pipe,
        ):
            await pipe.member.watch.owns(1)
            for turn in range(8):
                filling = asyncio.create_task(pipe.more())
                await pipe.acknowledged(turn * COUNT + chance.randrange(COUNT // 2))
                how = chance.choice(["answer", "kill", "stop", "terminate", "broker"])
                if how == "answer":
                    proxy.cut_answer = "INSERT"
                elif how == "kill":
                    await asyncio.to_thread(own_postgres.kill)
                elif how == "stop":
                    await asyncio.to_thread(own_postgres.stop)
                elif how == "terminate":
                    await terminate(own_postgres.dsn)
                elif how == "broker":
                    cuts.cut()
                await asyncio.to_thread(own_postgres.start)
                await filling
            await pipe.ended(8 * COUNT)

    run(scenario(), seconds=170)


async def terminate(dsn: str) -> None:
    """Terminate all other sessions."""
    con = await asyncpg.connect(dsn)
    try:
        await con.fetch(
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity "
            "WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
        )
    finally:
        await con.close()
