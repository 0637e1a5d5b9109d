"""Pipes into PostgreSQL that are killed: only records whose position was not stored are repeated.

`SLUICEGATE_KILLS=100 pytest -m soak tests/flow/test_pipe_kills.py` kills at 100 random moments.
"""

from __future__ import annotations

import os
import random
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from table_help import Written, assert_in_order, covered, table, written
from tests.kafka.source.child_help import Child, child_process
from tests.kafka.source.kafka_help import fill, new_name, new_topic, stored

from sluicegate.consumer import Position, TopicPartition

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.postgres.sink.postgres_help import Database

    from sluicegate.testing import EmbeddedKafka, EmbeddedPostgres

pytestmark = pytest.mark.usefixtures("real_clock")

PROGRAM = Path(__file__).with_name("pipe_child.py")
COUNT = 12_000
KEYS = 300
SLOW = """
CREATE FUNCTION {table}_slow() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN PERFORM pg_sleep(0.15); RETURN NULL; END $$;
CREATE TRIGGER slow AFTER INSERT ON {table} EXECUTE FUNCTION {table}_slow()
"""
"""Slows down every statement."""
KILLS = int(os.environ.get("SLUICEGATE_KILLS", "10"))


@pytest.mark.long
async def test_two_kills_at_random_moments_repeat_only_what_was_not_stored(
    broker: EmbeddedKafka, embedded_postgres: EmbeddedPostgres
) -> None:
    """consumer/C:N1, consumer/C:C5: each record is written at least once, and in order per key."""
    await _kill_at_random(broker, embedded_postgres, random.Random(0))


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(1, 1 + KILLS))
async def test_many_kills_at_random_moments(
    broker: EmbeddedKafka, embedded_postgres: EmbeddedPostgres, seed: int
) -> None:
    """Two kills each."""
    await _kill_at_random(broker, embedded_postgres, random.Random(seed))


async def _kill_at_random(
    broker: EmbeddedKafka, postgres: EmbeddedPostgres, chance: random.Random
) -> None:
    topic, group = await new_topic(broker), new_name("killed")
    await fill(broker, topic, COUNT, keys=KEYS)
    partition = TopicPartition(topic, 0)
    async with table(postgres.dsn) as db:
        given = {"bootstrap": broker.bootstrap, "topic": topic, "group": group}
        options = {**given, "dsn": db.dsn, "table": db.table}
        known: set[int] = set()
        before: list[Written] = []
        for is_last in (False, False, True):
            async with child_process(PROGRAM, **options) as process:
                if is_last:
                    await Child(process).until(lambda told: told["committed"] == COUNT)
                else:
                    await Child(process).until(_told_of(chance.randrange(COUNT - len(known))))
                process.kill()
                await process.wait()
            await _end_sessions(db)
            rows = await written(db)
            fresh = {row.at for row in rows[len(before) :]}
            assert not fresh & known, "a record was written again that was stored"
            position = (await stored(broker, group)).get(partition, Position(0))
            assert covered(position) <= {row.at for row in rows}, "stored, and not written"
            before, known = rows, covered(position)
        assert known == set(range(COUNT))
        assert_in_order(rows)


@pytest.mark.long
async def test_stops_at_random_moments_before_a_slow_table_repeat_nothing(
    broker: EmbeddedKafka, embedded_postgres: EmbeddedPostgres
) -> None:
    """As in deployments: more rows are inside than a drain can write, and no write is cut off."""
    topic, group, chance = await new_topic(broker), new_name("stopped"), random.Random(0)
    await fill(broker, topic, COUNT, keys=KEYS)
    async with table(embedded_postgres.dsn) as db:
        await db.con.execute(SLOW.format(table=db.table))
        given = {"bootstrap": broker.bootstrap, "topic": topic, "group": group}
        options = {**given, "dsn": db.dsn, "table": db.table, "drain": 3.0}
        known = 0
        for is_last in (False, False, True):
            async with child_process(PROGRAM, **options) as process:
                if is_last:
                    await db.con.execute(f"DROP TRIGGER slow ON {db.table}")
                    await Child(process).until(lambda told: told["committed"] == COUNT)
                else:
                    await Child(process).until(_told_of(chance.randrange(1, 2_000)))
                process.send_signal(signal.SIGTERM)
                await process.communicate()
                assert process.returncode == 0
            rows = await written(db)
            position = (await stored(broker, group))[TopicPartition(topic, 0)]
            assert covered(position) == {row.at for row in rows}
            assert known < len(rows)
            known = len(rows)
        assert known == COUNT
        assert_in_order(rows)


def _told_of(written: int) -> Callable[[dict[str, Any]], bool]:
    return lambda told: told["received"] > 0 and told["acked"] >= written


async def _end_sessions(db: Database) -> None:
    """End the server sessions of a killed program, and wait until they are gone."""
    await db.con.fetch(
        "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE application_name = $1",
        db.table,
    )
