"""A consumer in its own process, for tests that kill it or send it signals.

`consumer_child.py '{"bootstrap": ..., "topic": ..., "group": ..., "audit": FILE, ...}'` appends the
offset of each record that its handler has finished to a file, one write per record, and prints JSON
lines about its progress. See `Options`.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import sluicegate
from sluicegate.consumer import Commits, TopicPartition
from sluicegate.kafka import KafkaSource

if TYPE_CHECKING:
    from sluicegate import Consumer, Message

TELL_EVERY = 0.05
"""Seconds."""
SESSION = 30.0
COMMIT_EVERY = 0.1


@dataclass(frozen=True, kw_only=True)
class Options:
    """What the consumer reads, and how its handler behaves."""

    bootstrap: str
    topic: str
    group: str
    audit: str
    instance: str | None = None
    stuck: int = -1
    """The offset of a record that never finishes."""
    ignores: bool = False
    """Whether the handler of the stuck record ignores its first cancellation and then ends."""
    pause: float = 0.0
    """Seconds per record, multiplied by 0 to 6."""
    drain: float = 4.0


class Auditor:
    """Records each handled record in the audit file."""

    def __init__(self, options: Options) -> None:
        self._file = os.open(options.audit, os.O_CREAT | os.O_APPEND | os.O_WRONLY)
        self._options = options

    async def __call__(self, message: Message) -> None:
        """Handle a record; the duration varies."""
        if message.offset == self._options.stuck:
            await self._stay()
        if pause := self._options.pause * (message.offset * 7919 % 7):
            await asyncio.sleep(pause)
        os.write(self._file, b"%d\n" % message.offset)

    async def _stay(self) -> None:
        say(event="stuck")
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            say(event="cut")
            if not self._options.ignores:
                raise


def say(**told: Any) -> None:
    """Print a line."""
    sys.stdout.write(json.dumps(told) + "\n")
    sys.stdout.flush()


async def tell(consumer: Consumer, partition: TopicPartition) -> None:
    """Print the counts of the consumer, forever."""
    while True:
        stats = consumer.stats()
        of = stats.partitions.get(partition)
        say(
            acked=stats.counts.acked,
            committed=-1 if of is None else of.committed,
            received=stats.deliveries.received,
            skipped=stats.deliveries.skipped,
            replayed=stats.deliveries.replayed,
        )
        await asyncio.sleep(TELL_EVERY)


async def main(options: Options) -> None:
    """Run until a signal arrives."""
    source = KafkaSource(
        options.topic,
        bootstrap=options.bootstrap,
        group=options.group,
        instance=options.instance,
        session_timeout=SESSION,
        rebalance_timeout=10.0,
    )
    consumer = sluicegate.Consumer(
        source,
        name="audited",
        ordering="unordered",
        concurrency=20,
        commits=Commits(every=COMMIT_EVERY),
        drain=options.drain,
    )
    async with consumer:
        telling = asyncio.create_task(tell(consumer, TopicPartition(options.topic, 0)))
        try:
            await consumer.run(Auditor(options))
        finally:
            telling.cancel()
            say(event="ended")


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s")
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)
    sluicegate.run(main(Options(**json.loads(sys.argv[1]))))
