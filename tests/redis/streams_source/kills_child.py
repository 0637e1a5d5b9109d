"""A consumer of Redis streams in a process that tests kill or freeze.

`kills_child.py '{"url": ..., "audit": ...}'` appends a line `key value` to the audit for each
message, in one write, and prints a line to its parent each time.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
from typing import TYPE_CHECKING

from tests.examples.example import load

import sluicegate
from sluicegate import Consumer

if TYPE_CHECKING:
    from sluicegate import Message


async def consume(*, url: str, audit: str, topic: str, partitions: int, lease: float) -> None:
    """Consume until a signal arrives."""
    example = load("redis_streams_source")
    file = os.open(audit, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    async def handle(message: Message) -> None:
        await asyncio.sleep(0.002)  # a handler's own work
        os.write(file, b"%s %s\n" % (message.key, message.value))
        print(flush=True)  # noqa: T201  # the parent reads it

    source = example.RedisStreamsSource(url, topic, partitions=partitions, group="g", lease=lease)
    async with Consumer(source, name="child", concurrency=8, drain=0.3 * lease) as consumer:
        await consumer.run(handle)


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(message)s")
    sluicegate.run(consume(**json.loads(sys.argv[1])))
