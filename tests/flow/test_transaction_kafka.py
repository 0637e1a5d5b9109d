"""Transactional flows from topics: the records that they read, and their start positions."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
from kafka_piping import PipeWatch, kafka_source
from kept_table import COLUMNS, KeptTable, kept_table
from pipe_child import row_of
from tests.kafka.source.kafka_help import (
    admin_of,
    fill,
    new_name,
    new_topic,
    store,
    stored,
    transact,
)
from tests.kafka.source.storm_help import log_lines

from sluicegate import ConfigError, flow
from sluicegate.consumer import Commits, Position, TopicPartition
from sluicegate.postgres import PostgresSink

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from sluicegate.testing import EmbeddedKafka, EmbeddedPostgres

pytestmark = pytest.mark.usefixtures("real_clock")


@asynccontextmanager
async def flowing(
    broker: EmbeddedKafka, kept: KeptTable, topic: str, group: str, **options: Any
) -> AsyncIterator[PipeWatch]:
    """A running flow; drained at exit."""
    watch = PipeWatch()
    source = kafka_source(topic, group, broker.bootstrap, **options)
    sink = kept.sink(columns=COLUMNS)
    made = flow.transaction(
        source, sink, row_of, commits=Commits(every=0.01), drain=2.0, observers=[watch]
    )
    task = asyncio.ensure_future(made.run())
    try:
        await asyncio.wait_for(made.wait_ready(), 30.0)
        yield watch
    except BaseException:
        task.cancel()
        await asyncio.wait([task])
        raise
    made.stop()
    assert (await task).complete


def test_uncommitted_records_are_refused() -> None:
    sink = PostgresSink("postgresql://localhost/x", table="t", columns=COLUMNS)
    source = kafka_source("t", "g", "localhost:9092", isolation_level="read_uncommitted")
    with pytest.raises(ConfigError, match=r"isolation_level.*read_committed"):
        flow.transaction(source, sink, drain=2.0)
    flow.transaction(kafka_source("t", "g", "localhost:9092"), sink, drain=2.0)


async def test_only_committed_records_are_written(
    broker: EmbeddedKafka, embedded_postgres: EmbeddedPostgres
) -> None:
    topic, group = await new_topic(broker), new_name("committed")
    await fill(broker, topic, 3)
    await transact(broker, topic, (b"k", b"aborted"), commit=False)  # offset 3, and its marker
    await transact(broker, topic, (b"k", b"committed"))  # offset 5, and its marker
    async with kept_table(embedded_postgres.dsn) as kept:
        async with flowing(broker, kept, topic, group) as watch:
            await watch.stored(7)
        assert [at for _, at in await kept.rows()] == [0, 1, 2, 5]
        assert await kept.stored() == {(group, 0): 7}


async def test_it_continues_where_the_group_was_and_then_where_the_database_is(
    broker: EmbeddedKafka, embedded_postgres: EmbeddedPostgres
) -> None:
    topic, group = await new_topic(broker), new_name("group")
    partition = TopicPartition(topic, 0)
    await fill(broker, topic, 10)
    await store(broker, group, {partition: Position(4)})
    async with kept_table(embedded_postgres.dsn) as kept:
        async with flowing(broker, kept, topic, group) as watch:
            await watch.stored(10)
        assert (await stored(broker, group))[partition].offset == 10
        await store(broker, group, {partition: Position(2)})  # has no effect
        await fill(broker, topic, 5)
        async with flowing(broker, kept, topic, group) as watch:
            await watch.stored(15)
        assert [at for _, at in await kept.rows()] == list(range(4, 15))


async def test_the_end_as_a_start_is_stored_before_anything_is_read(
    broker: EmbeddedKafka, embedded_postgres: EmbeddedPostgres
) -> None:
    topic, group = await new_topic(broker), new_name("latest")
    await fill(broker, topic, 4)
    async with kept_table(embedded_postgres.dsn) as kept:
        async with flowing(broker, kept, topic, group, start="latest"):
            assert await kept.stored() == {(group, 0): 4}
        await fill(broker, topic, 3)
        async with flowing(broker, kept, topic, group, start="latest") as watch:
            await watch.stored(7)
        assert [at for _, at in await kept.rows()] == [4, 5, 6]


@pytest.mark.parametrize("has_grown", [False, True])
async def test_a_topic_made_anew_is_read_from_its_beginning(
    broker: EmbeddedKafka, embedded_postgres: EmbeddedPostgres, has_grown: bool
) -> None:
    """Its records are new ones, although the stored position has passed their offsets. If it has
    more records than that, it may be the old one whose group was deleted: this is told.
    """
    topic, group = await new_topic(broker), new_name("anew")
    await fill(broker, topic, 50)
    async with kept_table(embedded_postgres.dsn) as kept:
        async with flowing(broker, kept, topic, group) as watch:
            await watch.stored(50)
        async with admin_of(broker) as admin:
            await admin.delete_topics([topic])
        await new_topic(broker, name=topic)
        count, told = (60, "position 50 of") if has_grown else (5, "ends at 5, before")
        first = 50 if has_grown else 0
        await fill(broker, topic, count)
        async with log_lines() as log, flowing(broker, kept, topic, group) as watch:
            await watch.stored(count)
            await log.wait(told)
        assert [at for _, at in await kept.rows()] == [*range(50), *range(first, count)]
        assert await kept.stored() == {(group, 0): count}
