"""Transactional flows from Kafka into Kafka that are killed and frozen: each record once, in order.

`SLUICEGATE_KILLS=50 pytest -m soak tests/flow/test_transaction_into_kafka_kills.py` kills 50 times.
"""

from __future__ import annotations

import os
import random
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from kept_topic import KeptTopic, assert_once_and_in_order, kept_topic, running
from tests.kafka.source.child_help import Child, child_process
from tests.kafka.source.kafka_help import fill

from sluicegate.consumer import Commits, Position

if TYPE_CHECKING:
    from collections.abc import Callable

    from sluicegate.testing import EmbeddedKafka

pytestmark = pytest.mark.usefixtures("real_clock")

PROGRAM = Path(__file__).with_name("kafka_transaction_child.py")
COUNT = 3_000
KILLS = int(os.environ.get("SLUICEGATE_KILLS", "50"))


def options_of(kept: KeptTopic, **options: Any) -> dict[str, Any]:
    """The options of a process."""
    return {
        "bootstrap": kept.broker.bootstrap,
        "topic": kept.source_topic,
        "group": kept.group,
        "to": kept.topic,
        **options,
    }


@pytest.mark.long
async def test_eight_kills_at_random_moments(broker: EmbeddedKafka) -> None:
    await _kill_at_random(broker, 8, random.Random(0))


@pytest.mark.soak
async def test_many_kills_at_random_moments(broker: EmbeddedKafka) -> None:
    await _kill_at_random(broker, KILLS, random.Random(1))


async def _kill_at_random(broker: EmbeddedKafka, kills: int, chance: random.Random) -> None:
    """Kill the process after a number of acknowledged records; the last process finishes the
    work.
    """
    kept = await kept_topic(broker)
    await fill(broker, kept.source_topic, COUNT)
    options = options_of(kept, pause=0.02)
    done = 0
    for left in range(kills, 0, -1):
        async with child_process(PROGRAM, **options) as process:
            await Child(process).until(_acked(chance.randrange(1, max(2, (COUNT - done) // left))))
            process.kill()
            await process.wait()
        done = (await kept.stored()).get(0, Position(0)).offset
        assert done < COUNT, "it was killed in the middle"
    async with running(kept.source(), kept.sink()) as flow:
        await flow.stored({0: COUNT})
    assert_once_and_in_order(await kept.readable(), {0: COUNT})


def _acked(least: int) -> Callable[[dict[str, Any]], bool]:
    return lambda told: told["acked"] >= least


@pytest.mark.long
async def test_a_frozen_process_commits_nothing_when_it_wakes_up(broker: EmbeddedKafka) -> None:
    """Its partitions have moved; it reports this once and continues with those it is assigned
    again.
    """
    kept = await kept_topic(broker, 2)
    counts = {0: COUNT, 1: COUNT}
    for part in counts:
        await fill(broker, kept.source_topic, COUNT, partition=part)
    async with child_process(PROGRAM, **options_of(kept, pause=0.05)) as process:
        child = Child(process)
        await child.until(_acked(200))
        process.send_signal(signal.SIGSTOP)
        async with running(
            kept.source(), kept.sink(), commits=Commits(every=0.05, after=500)
        ) as flow:
            await flow.watch.owns(2)
            await flow.stored({0: 1_000, 1: 1_000})
            process.send_signal(signal.SIGCONT)
            await child.until(lambda told: told["event"] in {"lost", "revoked"})
            await child.until(lambda told: told["event"] == "assigned")
        # the other process has left
        await child.until(lambda told: told["committed"] == sum(counts.values()))
        process.send_signal(signal.SIGTERM)
        _, errors = await process.communicate()
        assert process.returncode == 0
        for part in counts:
            assert errors.decode().count(f"the position of {kept.at(part)} is lost") <= 1
    assert_once_and_in_order(await kept.readable(), counts)
    assert {part: at.offset for part, at in (await kept.stored()).items()} == counts


@pytest.mark.soak
async def test_processes_come_and_go(broker: EmbeddedKafka) -> None:
    """Three processes, killed or stopped in turn: the partitions keep moving."""
    kept = await kept_topic(broker, 3)
    counts = dict.fromkeys(range(3), 1_500)
    for part, count in counts.items():
        await fill(broker, kept.source_topic, count, partition=part)
    options = options_of(kept, pause=0.05)
    async with running(kept.source(), kept.sink(), commits=Commits(every=0.05, after=20)) as flow:
        for kind in (signal.SIGKILL, signal.SIGTERM, signal.SIGKILL):
            async with child_process(PROGRAM, **options) as process:
                await Child(process).until(lambda told: told["event"] == "assigned")
                process.send_signal(kind)
                await process.communicate()
        await flow.watch.owns(3)
        await flow.stored(counts)
    assert_once_and_in_order(await kept.readable(), counts)
