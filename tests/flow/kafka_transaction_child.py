"""A transactional flow from Kafka into Kafka in its own process, for tests that kill, freeze or
stop it.

`kafka_transaction_child.py '{"bootstrap": ..., "topic": ..., "group": ..., "to": ...}'` makes one
record of each source record, with its partition, offset and key, and prints JSON lines about its
progress.

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
from sluicegate import flow
from sluicegate.consumer import Commits, ConsumerObserver
from sluicegate.kafka import KafkaAccess, KafkaSink, KafkaSource

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from sluicegate import Message
    from sluicegate.consumer import TopicPartition
    from sluicegate.consumer.operating.stats import ConsumerStats

TELL_EVERY = 0.01
"""Seconds."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """What the flow reads and where it writes."""

    bootstrap: str
    topic: str
    group: str
    to: str
    session_timeout: float = 2.0
    commit_after: int = 40
    pause: float = 0.0
    """Delay before each record is transformed, in seconds."""


def row_of(message: Message) -> dict[str, Any]:
    """The row of a record: its partition, offset and key."""
    key = None if message.key is None else message.key.decode()
    return {"part": message.partition, "at": message.offset, "key": key}


def say(**told: Any) -> None:
    """Print a line."""
    sys.stdout.write(json.dumps(told) + "\n")
    sys.stdout.flush()


class Teller(ConsumerObserver):
    """Prints the counts of the flow until it is closed."""

    def __init__(self) -> None:
        self._task: asyncio.Task[None] | None = None

    def on_open(self, name: str, stats: Callable[[], ConsumerStats]) -> None:
        self._task = asyncio.get_running_loop().create_task(self._tell(stats))

    def on_claims(self, name: str, change: Any, partitions: Sequence[TopicPartition]) -> None:
        say(event=change, partitions=[each.partition for each in partitions])

    def on_state(self, name: str, state: str) -> None:
        if state == "closed" and self._task is not None:
            self._task.cancel()

    async def _tell(self, stats: Callable[[], ConsumerStats]) -> None:
        while True:
            now = stats()
            committed = sum(max(0, of.committed or 0) for of in now.partitions.values())
            say(acked=now.counts.acked, committed=committed)
            await asyncio.sleep(TELL_EVERY)


async def main(options: Options) -> None:
    """Run until a signal arrives."""

    async def transform(message: Message) -> dict[str, Any]:
        if options.pause:
            await asyncio.sleep(options.pause)
        return row_of(message)

    source = KafkaSource(
        options.topic,
        bootstrap=options.bootstrap,
        group=options.group,
        session_timeout=options.session_timeout,
        rebalance_timeout=10.0,
    )
    sink = KafkaSink(
        options.to, bootstrap=KafkaAccess(options.bootstrap, request_timeout=2.0), key="key"
    )
    report = await flow.transaction(
        source,
        sink,
        transform,
        name="child",
        commits=Commits(every=0.02, after=options.commit_after),
        drain=2.5,
        observers=[Teller()],
    ).run()
    say(event="ended", complete=report.complete)


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s")
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)
    sluicegate.run(main(Options(**json.loads(sys.argv[1]))))
