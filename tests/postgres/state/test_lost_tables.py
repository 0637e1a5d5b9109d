"""Tables of a state that are lost together with its positions, while a copy of the position is left
at the source: the state would begin again in the middle of the log.

White box: the mark of a copied position.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from state_help import StateTables, state_tables
from tests.kafka.source.kafka_help import fill, new_topic, store, stored

from sluicegate import ConfigError, Consumer
from sluicegate.batcher import LoopClock
from sluicegate.consumer import Commits, MemoryLog, MemorySource, Position, TopicPartition
from sluicegate.flow.state.changes import COPY

if TYPE_CHECKING:
    from sluicegate.consumer.jobs import EventContext
    from sluicegate.testing import EmbeddedKafka, EmbeddedPostgres

pytestmark = pytest.mark.usefixtures("real_clock")

CLOCK = LoopClock()

PART = TopicPartition("t", 0)


async def opened(tables: StateTables, offset: Position) -> int:
    """Open a state whose source has this offset; return the number of its entries."""
    async with tables.state() as state:
        state.attach(MemorySource(MemoryLog([])))
        assert state._kept is not None
        known = await state._kept.take([PART])
        state._kept.begins_at_offsets({} if PART in known else {PART: offset})
        store = await state.open(PART)
        store.begin_turn(None)  # type: ignore[attr-defined]
        return len(store)


async def test_a_copy_without_a_state_is_refused(embedded_postgres: EmbeddedPostgres) -> None:
    """consumer/G29: the tables were emptied, or the database is another one."""
    async with state_tables(embedded_postgres.dsn) as tables:
        with pytest.raises(ConfigError, match="offset 5 is a copy of a position"):
            await opened(tables, Position(5, COPY))
        assert await opened(tables, Position(5)) == 0, "of a group that had no state"
        row = f"""INSERT INTO "{tables.table}" VALUES ('memory', 't', 0, 'k', '1')"""
        await tables.con.execute(row)
        assert await opened(tables, Position(5, COPY)) == 1, "entries without a mark are a start"


@pytest.mark.long
async def test_tables_that_are_lost(
    broker: EmbeddedKafka, embedded_postgres: EmbeddedPostgres
) -> None:
    """Nothing is handled until the tables are restored, or the group's offset is set."""
    from sluicegate.kafka import KafkaSource

    topic, handled = await new_topic(broker), list[int]()
    part = TopicPartition(topic, 0)

    async def handle(context: EventContext) -> None:
        handled.append(context.message.offset)
        context.store.put("n", context.store.get("n", 0) + 1)

    async def run(tables: StateTables, until: str) -> None:
        source = KafkaSource(topic, bootstrap=broker.bootstrap, group=topic)
        async with (
            tables.state() as state,
            Consumer(
                state.attach(source), ordering="partition", commits=Commits(every=0.01)
            ) as consumer,
            asyncio.timeout(60.0),
        ):
            task = asyncio.create_task(consumer.run_events(handle, state=state))
            while until not in f"{consumer.explain()} {await stored(broker, topic)}":
                await CLOCK.sleep(0.01)
            task.cancel()
            await asyncio.wait([task])

    await fill(broker, topic, 5)
    async with state_tables(embedded_postgres.dsn) as tables:
        await run(tables, "offset=5")
        assert await stored(broker, topic) == {part: Position(5, COPY)}
        await run(tables, "offset=5")  # with its tables it continues
        await fill(broker, topic, 1)
        await tables.con.execute(f'DROP TABLE "{tables.table}", "{tables.positions}"')
        await run(tables, "offset 5 is a copy")
        assert handled == [*range(5)]
        await store(broker, topic, {part: Position(5)})
        await run(tables, "offset=6")
        assert handled == [*range(6)]
        assert await tables.stored() == (6, {"n": 1})
