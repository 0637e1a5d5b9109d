"""Partitions that are not read: their cost for other partitions, and the memory of the client."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
from functools import partial
from typing import TYPE_CHECKING

from sluicegate import Consumer
from sluicegate.consumer import InFlight, TopicPartition

from ...harness import MIB, NS_PER_ITEM, AtMost, Case, Contender
from ...kafka.counting import Counter
from ...kafka.topics import a_broker, fill, fill_beside
from ...kafka.ways import CONCURRENCY, FETCH, WINDOW, source_of
from ...stopwatch import Clock
from ...workers import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from sluicegate import Message

    from ...harness import Turn
    from ...stopwatch import Took

TOPIC = "beside"
ITEMS = 60_000
OTHERS = 3
KEYS = 1_000
READ = "all partitions are read"
PAUSED = "one partition is paused"
PARTITIONS = (1, 100)
EACH = 2 * 2**20
"""Bytes per partition."""
LARGE = 10_000
PATIENCE = 60.0


async def consume(bootstrap: str, count: int, beside: str) -> Took:
    """Consume the records of all partitions except the first one."""
    counter = Counter(count)

    async def handle(message: Message) -> None:
        if message.partition:
            await counter.handle(message)

    async with Consumer(
        source_of(bootstrap, TOPIC),
        concurrency=CONCURRENCY,
        in_flight=InFlight(WINDOW, fetch_max=FETCH),
    ) as consumer:
        if beside == PAUSED:
            consumer.pause(TopicPartition(TOPIC, 0))
        run = asyncio.create_task(consumer.run(handle))
        await counter.wait_finished()
        took = counter.read()
        consumer.stop()
        await run
    return took


@contextlib.contextmanager
def prepare(count: int) -> Iterator[Sequence[Contender]]:
    with a_broker() as broker:
        fill_beside(broker, TOPIC, count, keys=KEYS, others=OTHERS)

        def turn(beside: str) -> Took:
            return asyncio.run(consume(broker.bootstrap, count, beside))

        yield [Contender(each, partial(turn, each), ours=True) for each in (READ, PAUSED)]


def held_name(partitions: int) -> str:
    return f"partitions that are not read: {partitions}"


def _held(bootstrap: str, topic: str) -> Turn:
    command = [sys.executable, "-m", "benchmarks.kafka.programs.held", bootstrap, topic]
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}

    def turn() -> float:
        done = subprocess.run(
            command, env=environment, check=True, capture_output=True, text=True, timeout=PATIENCE
        )
        return float(done.stdout)

    return turn


@contextlib.contextmanager
def prepare_held(count: int) -> Iterator[Sequence[Contender]]:
    with a_broker() as broker:
        for partitions in PARTITIONS:
            records = partitions * count
            fill(
                broker,
                f"held-{partitions}",
                records,
                keys=records,
                partitions=partitions,
                value=b"x" * LARGE,
            )
        yield [
            Contender(held_name(partitions), _held(broker.bootstrap, f"held-{partitions}"))
            for partitions in PARTITIONS
        ]


CASES = (
    Case(
        name="kafka-beside",
        title="Records beside a partition that is not read",
        prepare=prepare,
        items=ITEMS,
        quick_items=600,
        unit=NS_PER_ITEM,
        by=Clock.WALL,
        peers=(READ,),
        targets=(AtMost(PAUSED, READ, 1.2),),
        is_drawn=False,
    ),
    Case(
        name="kafka-held",
        title="Memory of the client for partitions that are not read",
        prepare=prepare_held,
        items=EACH // LARGE,
        quick_items=1,
        unit=MIB,
        peers=(),
        is_drawn=False,
    ),
)
