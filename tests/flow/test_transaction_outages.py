"""Transactional flows whose database or broker fails during transactions."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, NamedTuple

import asyncpg
import pytest
from kafka_piping import PipeWatch, kafka_source
from kept_table import COLUMNS, KeptTable, kept_table
from pipe_child import row_of
from tests.kafka.source.kafka_help import fill, new_name, new_topic
from tests.kafka.source.proxy_help import proxied as proxied_broker
from tests.kafka.source.storm_help import log_lines, run
from tests.postgres.sink.postgres_help import Database, until_blocked

from sluicegate import flow
from sluicegate.consumer import Commits
from sluicegate.testing import embedded_postgres
from sluicegate.testing.servers.require import there_or_skip

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

    from tests.kafka.source.own_help import OwnKafka

    from sluicegate.testing import EmbeddedKafka, EmbeddedPostgres

COUNT = 1_000


@pytest.fixture(scope="module")
def own_postgres() -> Iterator[EmbeddedPostgres]:
    """A server that tests may stop and kill; they leave it running."""
    with there_or_skip("postgres", embedded_postgres({"fsync": "off"})) as server:
        yield server


class Flowing(NamedTuple):
    """A running flow from a topic of one partition into a table."""

    pipe: flow.TransactionalPipe
    watch: PipeWatch
    kept: KeptTable
    broker: EmbeddedKafka
    topic: str

    async def more(self, upto: int) -> None:
        """Append records; return when they are committed."""
        await fill(self.broker, self.topic, COUNT, keys=50)
        await self.watch.stored(upto)

    async def blocked(self) -> None:
        """Append records; return when their transaction waits for a lock on the table."""
        await fill(self.broker, self.topic, COUNT, keys=50)
        await until_blocked(self.kept.db.con, self.kept.db.table)


@asynccontextmanager
async def flowing(
    broker: EmbeddedKafka, postgres: EmbeddedPostgres, bootstrap: str = ""
) -> AsyncIterator[Flowing]:
    """A flow from a new topic into a new table; at the end each record is present once, in
    order.
    """
    topic, group = await new_topic(broker), new_name("group")
    source = kafka_source(
        topic, group, bootstrap or broker.bootstrap, session_timeout=30, rebalance_timeout=30
    )
    watch = PipeWatch()
    async with kept_table(postgres.dsn) as kept:
        pipe = flow.transaction(
            source,
            kept.sink(columns=COLUMNS),
            row_of,
            commits=Commits(every=0.01, after=50),
            observers=[watch],
        )
        task = asyncio.ensure_future(pipe.run())
        try:
            made = Flowing(pipe, watch, kept, broker, topic)
            await made.more(COUNT)
            yield made
            await watch.stored(2 * COUNT)
            pipe.stop()
            assert (await task).complete
        except BaseException:
            task.cancel()
            await asyncio.wait([task])
            raise
        con = await asyncpg.connect(kept.db.dsn)  # the server may have restarted
        again = KeptTable(Database(kept.db.dsn, kept.db.table, con))
        assert [at for _, at in await again.rows()] == list(range(2 * COUNT))
        assert await again.stored() == {(group, 0): 2 * COUNT}
        await con.close()


@pytest.mark.parametrize("how", ["kill", pytest.param("stop", marks=pytest.mark.soak)])
def test_a_database_that_restarts_costs_no_row_and_repeats_none(
    broker: EmbeddedKafka, own_postgres: EmbeddedPostgres, how: str
) -> None:
    async def scenario() -> None:
        async with flowing(broker, own_postgres) as made, log_lines():
            await made.kept.db.con.execute(f"BEGIN; LOCK TABLE {made.kept.db.table}")
            await made.blocked()
            down = own_postgres.kill if how == "kill" else own_postgres.stop
            await asyncio.to_thread(down)
            await asyncio.to_thread(own_postgres.start)

    run(scenario())


@pytest.mark.soak
def test_a_broker_that_is_away_for_a_while_costs_no_row_and_repeats_none(
    broker: EmbeddedKafka, own_postgres: EmbeddedPostgres
) -> None:
    async def scenario() -> None:
        async with proxied_broker(broker) as proxy:

            async def down() -> None:
                proxy.refuse()

            await _broker_outage(broker, own_postgres, down, proxy.listen, proxy.bootstrap)

    run(scenario())


@pytest.mark.long
def test_a_broker_that_is_killed_and_started_again_costs_no_row_and_repeats_none(
    own_broker: OwnKafka, own_postgres: EmbeddedPostgres
) -> None:
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
    """Stop the broker during a transaction, which commits while it is down."""
    async with flowing(broker, postgres, bootstrap) as made, log_lines() as log:
        async with made.kept.db.con.transaction():
            await made.kept.db.con.execute(f"LOCK TABLE {made.kept.db.table} IN EXCLUSIVE MODE")
            await made.blocked()
            await down()
        await log.wait("no broker can be reached")
        await up()
        await log.wait("delivers again")
