"""A pipe from Kafka into PostgreSQL in its own process, for tests that kill it or send it signals.

`pipe_child.py '{"bootstrap": ..., "topic": ..., "group": ..., "dsn": ..., "table": ...}'` writes
one row per record, with its partition, offset and key, and prints JSON lines about its progress.

White box: the type of a consumer's statistics is private.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import sluicegate
from sluicegate import Batcher, Limits, Retry, flow, stack
from sluicegate.consumer import Commits, ConsumerObserver, TopicPartition
from sluicegate.kafka import KafkaSource
from sluicegate.postgres import PostgresAccess, PostgresSink

if TYPE_CHECKING:
    from collections.abc import Callable

    from sluicegate import Message
    from sluicegate.consumer.operating.stats import ConsumerStats

TELL_EVERY = 0.01
"""Seconds."""
COMMIT_EVERY = 0.05
COLUMNS = ("part", "at", "key")


@dataclass(frozen=True, kw_only=True)
class Options:
    """What the pipe reads and where it writes."""

    bootstrap: str
    topic: str
    group: str
    dsn: str
    table: str
    drain: float = 4.0
    workers: int = 4


def row_of(message: Message) -> tuple[int, int, str]:
    """The row of a record."""
    assert message.key is not None
    return message.partition, message.offset, message.key.decode()


def key_of(row: tuple[int, int, str]) -> tuple[int, str]:
    """The ordering key."""
    return row[0], row[2]


def say(**told: Any) -> None:
    """Print a line."""
    sys.stdout.write(json.dumps(told) + "\n")
    sys.stdout.flush()


class Teller(ConsumerObserver):
    """Prints the counts of the pipe until it is closed."""

    def __init__(self, partition: TopicPartition) -> None:
        self._partition = partition
        self._task: asyncio.Task[None] | None = None

    def on_open(self, name: str, stats: Callable[[], ConsumerStats]) -> None:
        self._task = asyncio.get_running_loop().create_task(self._tell(stats))

    def on_state(self, name: str, state: str) -> None:
        if state in {"draining", "closed"}:
            say(event=state)
        if state == "closed" and self._task is not None:
            self._task.cancel()

    async def _tell(self, stats: Callable[[], ConsumerStats]) -> None:
        while True:
            now = stats()
            of = now.partitions.get(self._partition)
            say(
                acked=now.counts.acked,
                received=now.deliveries.received,
                committed=-1 if of is None else of.committed,
            )
            await asyncio.sleep(TELL_EVERY)


async def main(options: Options) -> None:
    """Run until a signal arrives."""
    source = KafkaSource(
        options.topic,
        bootstrap=options.bootstrap,
        group=options.group,
        instance="only",
        session_timeout=2.0,
        rebalance_timeout=10.0,
    )
    named = {"server_settings": {"application_name": options.table}}
    sink = PostgresSink(
        PostgresAccess(options.dsn, connect_options=named), table=options.table, columns=COLUMNS
    )
    batcher = Batcher(
        stack(sink, Retry()),
        key=key_of,
        limits=Limits(max_items=100, max_delay=0.02, workers=options.workers),
    )
    report = await flow.pipe(
        source,
        batcher,
        row_of,
        name="child",
        commits=Commits(every=COMMIT_EVERY),
        drain=options.drain,
        observers=[Teller(TopicPartition(options.topic, 0))],
    ).run()
    say(event="ended", complete=report.complete)


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s")
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)
    sluicegate.run(main(Options(**json.loads(sys.argv[1]))))
