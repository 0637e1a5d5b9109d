"""Keys that span partitions, across assignments."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from consumer_help import P0, P1

from sluicegate import Consumer
from sluicegate.consumer import Keys, MemoryLog, MemorySource

if TYPE_CHECKING:
    from sluicegate import Message
    from sluicegate.testing import FakeClock


async def test_a_partition_that_returns_shares_the_keys_of_the_others(
    fake_clock: FakeClock,
) -> None:
    """consumer/C:O4, consumer/C:N3: also if no key was busy in between."""
    log, running, most = MemoryLog(partitions=[P0, P1]), 0, 0

    async def handle(message: Message) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await fake_clock.sleep(0.5)
        running -= 1

    source = MemorySource(log, clock=fake_clock)
    consumer = Consumer(source, clock=fake_clock, key=Keys(scope="topic"))
    async with consumer, asyncio.TaskGroup() as tasks:
        run = tasks.create_task(consumer.run(handle))
        await fake_clock.advance(1.0)
        source.lose([P1])
        source.assign([P1])
        for partition in (0, 1):
            log.produce("t", b"", key="a", partition=partition)
        await fake_clock.advance(2.0)
        assert consumer.stats().counts.acked == 2
        assert most == 1
        consumer.stop()
        await run
