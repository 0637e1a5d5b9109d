"""Changes that operators make to the table and the topic of a running pipe, and the pipe's
messages.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from kafka_piping import kafka_source, pipe_member
from pipe_child import COLUMNS, key_of, row_of
from table_help import assert_in_order, table, written
from tests.kafka.source.kafka_help import admin_of, fill, new_name, new_topic, stored
from tests.kafka.source.storm_help import log_lines, run
from tests.postgres.sink.postgres_help import role

from sluicegate import Batcher, Limits, Retry, RetryPolicy, stack
from sluicegate.consumer import TopicPartition

if TYPE_CHECKING:
    from sluicegate.testing import EmbeddedKafka, EmbeddedPostgres

MISTAKES = {
    "the table renamed": (
        "ALTER TABLE {table} RENAME TO {table}_aside",
        "ALTER TABLE {table}_aside RENAME TO {table}",
    ),
    "a column dropped": (
        "ALTER TABLE {table} DROP COLUMN key",
        "ALTER TABLE {table} ADD COLUMN key text",
    ),
    "a grant revoked": (
        "REVOKE INSERT ON {table} FROM {role}",
        "GRANT INSERT ON {table} TO {role}",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_with_the_table_holds_the_pipe_until_it_is_repaired(
    broker: EmbeddedKafka, embedded_postgres: EmbeddedPostgres, mistake: str
) -> None:
    """No record is given up or blocked, and the position waits."""
    breaks, repairs = MISTAKES[mistake]

    async def scenario() -> None:
        topic, group = await new_topic(broker), new_name("group")
        partition = TopicPartition(topic, 0)
        async with table(embedded_postgres.dsn) as db, role(db) as writer, log_lines() as log:
            names = {"table": db.table, "role": writer.name}
            await db.con.execute(f"GRANT USAGE ON SEQUENCE {db.table}_n_seq TO {writer.name}")
            batcher = Batcher(
                stack(db.sink(COLUMNS, dsn=writer.dsn), Retry()),
                key=key_of,
                limits=Limits(max_items=100, max_delay=0.01, workers=4),
            )
            source = kafka_source(topic, group, broker.bootstrap)
            async with pipe_member(source, batcher, transform=row_of) as member:
                await fill(broker, topic, 500)
                await member.watch.stored(500)
                await db.con.execute(breaks.format(**names))
                await fill(broker, topic, 500)
                await log.wait("refused every write.*; to repair: ")
                told = str(member.pipe.explain())
                assert told.count("to repair: ") == told.count(f'"{db.table}"') / 2 == 1
                assert member.pipe.blocked == ()
                assert (await stored(broker, group))[partition].offset == 500
                await db.con.execute(repairs.format(**names))
                await member.watch.stored(1_000)
                report = await member.stop()
            assert report.complete
            assert report.source.counts.acked == 1_000
            rows = await written(db)
            assert [row.at for row in sorted(rows, key=lambda row: row.at)] == list(range(1_000))
            if "column" not in mistake:
                assert_in_order(rows)

    run(scenario())


def test_rows_that_fit_no_column_any_more_are_blocked_and_go_on_when_told(
    broker: EmbeddedKafka, embedded_postgres: EmbeddedPostgres
) -> None:
    """With a column of another type every row is refused individually: none is given up."""

    async def scenario() -> None:
        topic, group = await new_topic(broker), new_name("group")
        async with table(embedded_postgres.dsn) as db:
            batcher = Batcher(stack(db.sink(COLUMNS), Retry()), key=key_of)
            source = kafka_source(topic, group, broker.bootstrap)
            quick = RetryPolicy(attempts=2)
            async with pipe_member(source, batcher, transform=row_of, retry=quick) as member:
                await fill(broker, topic, 100)
                await member.watch.stored(100)
                column = f"ALTER TABLE {db.table} ALTER COLUMN key TYPE"
                await db.con.execute(f"{column} int USING length(key)")
                await fill(broker, topic, 100)
                await member.poisoned(5)
                keys = {blocked.key for blocked in member.pipe.blocked}
                assert keys == {b"k%d" % at for at in range(5)}
                assert (await stored(broker, group))[TopicPartition(topic, 0)].offset == 100
                await db.con.execute(f"{column} text")
                for key in (b"k%d" % at for at in range(5)):
                    assert member.pipe.unblock(key) == 1
                await member.watch.stored(200)
                assert (await member.stop()).complete
            rows = await written(db)
            assert [row.at for row in rows[:100]] == list(range(100))
            assert sorted(row.at for row in rows) == list(range(200))
            for key in (b"k%d" % at for at in range(5)):
                mine = [row.at for row in rows[100:] if row.key == key.decode()]
                assert mine == sorted(mine)

    run(scenario())


def test_a_deleted_topic_is_told_and_read_from_its_start_when_it_is_back(
    broker: EmbeddedKafka, embedded_postgres: EmbeddedPostgres
) -> None:
    async def scenario() -> None:
        topic, group = await new_topic(broker), new_name("group")
        async with table(embedded_postgres.dsn) as db, log_lines() as log:
            batcher = Batcher(db.sink(COLUMNS), key=key_of)
            source = kafka_source(topic, group, broker.bootstrap, metadata_max_age_ms=500)
            async with pipe_member(source, batcher, transform=row_of) as member:
                await fill(broker, topic, 50)
                await member.watch.stored(50)
                async with admin_of(broker) as admin:
                    await admin.delete_topics([topic])
                await log.wait(f"the topic '{topic}' does not exist")
                assert f"the topic '{topic}' does not exist" in str(member.pipe.explain())
                assert not member.pipe.ready
                await new_topic(broker, name=topic)
                await fill(broker, topic, 20)
                stats = member.pipe.stats
                await member.watch.news.until(lambda: stats().source.counts.acked == 70)
            assert [row.at for row in await written(db)] == [*range(50), *range(20)]

    run(scenario())
