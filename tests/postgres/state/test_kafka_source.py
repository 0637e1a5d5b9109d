"""State beside a Kafka topic, with partitions that move between processes."""

from __future__ import annotations

import asyncio
import random
import signal
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from state_counting import assert_replay
from state_help import state_tables
from tests.kafka.source.child_help import Child, child_process
from tests.kafka.source.kafka_help import fill, new_name, new_topic, stored

from sluicegate.batcher import LoopClock

if TYPE_CHECKING:
    from asyncio.subprocess import Process

    from state_help import StateTables

    from sluicegate.testing import EmbeddedKafka, EmbeddedPostgres

pytestmark = pytest.mark.usefixtures("real_clock")

CLOCK = LoopClock()

PROGRAM = Path(__file__).parents[2] / "flow/state_child.py"
COUNT = 2500
PARTS = 2


async def until(tables: StateTables, least: int) -> None:
    """Wait until all partitions have reached their positions."""
    async with asyncio.timeout(60.0):
        while min([await tables.position(part) for part in range(PARTS)]) < least:
            pass


@pytest.mark.long
@pytest.mark.parametrize(
    "how", [signal.SIGKILL, pytest.param(signal.SIGSTOP, marks=pytest.mark.long)]
)
async def test_two_processes(
    broker: EmbeddedKafka, embedded_postgres: EmbeddedPostgres, how: signal.Signals
) -> None:
    """G-T24: one process joins, the other is killed or frozen; each partition's state is always a
    replay of its events.
    """
    topic, group = await new_topic(broker, PARTS), new_name("state")
    for part in range(PARTS):
        await fill(broker, topic, COUNT, partition=part)
    async with AsyncExitStack() as stack:
        tables = await stack.enter_async_context(state_tables(embedded_postgres.dsn))
        options = {
            "dsn": tables.dsn,
            "table": tables.table,
            "positions": tables.positions,
            "bootstrap": broker.bootstrap,
            "topic": topic,
            "group": group,
        }
        first = await stack.enter_async_context(child_process(PROGRAM, **options, seed=1))
        await until(tables, 200)
        second = await stack.enter_async_context(child_process(PROGRAM, **options, seed=2))
        await until(tables, 1200)
        first.send_signal(how)
        for part in range(PARTS):
            position, state = await tables.stored(part)
            assert_replay(position, state)
        await until(tables, COUNT)
        if how == signal.SIGSTOP:
            first.send_signal(signal.SIGCONT)
            await CLOCK.sleep(3.0)  # time in which it must not store
            first.send_signal(signal.SIGTERM)
            await first.communicate()
        second.send_signal(signal.SIGTERM)
        errors = await Child(second).errors()
        assert await second.wait() == 0, errors
        for part in range(PARTS):
            position, state = await tables.stored(part)
            assert position == COUNT
            assert_replay(position, state)
    copied = await stored(broker, group)
    assert {each.partition: at.offset for each, at in copied.items()} == dict.fromkeys(
        range(PARTS), COUNT
    )


@pytest.mark.soak
async def test_processes_that_come_and_are_killed(
    broker: EmbeddedKafka, embedded_postgres: EmbeddedPostgres
) -> None:
    """G-T24: up to three processes, of which one is killed, frozen permanently, or stopped at a
    random moment.
    """
    count, chance = 15_000, random.Random(2)
    topic, group = await new_topic(broker, PARTS), new_name("state")
    for part in range(PARTS):
        await fill(broker, topic, count, partition=part)
    async with state_tables(embedded_postgres.dsn) as tables:
        options = {
            "dsn": tables.dsn,
            "table": tables.table,
            "positions": tables.positions,
            "bootstrap": broker.bootstrap,
            "topic": topic,
            "group": group,
        }
        async with AsyncExitStack() as stack:
            running: list[Process] = []
            for seed in range(14):
                running.append(
                    await stack.enter_async_context(child_process(PROGRAM, **options, seed=seed))
                )
                await CLOCK.sleep(chance.uniform(0.5, 3.0))
                if len(running) > 2:
                    gone = running.pop(chance.randrange(3))
                    gone.send_signal(
                        chance.choice([signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM])
                    )
                for part in range(PARTS):
                    position, state = await tables.stored(part)
                    assert_replay(position, state)
            async with asyncio.timeout(100.0):
                while min([await tables.position(part) for part in range(PARTS)]) < count:
                    await CLOCK.sleep(0.05)
            for part in range(PARTS):
                position, state = await tables.stored(part)
                assert position == count
                assert_replay(position, state)
