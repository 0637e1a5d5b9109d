"""More members than partitions."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

from tests.sources.kafka.kafka_help import new_name, new_topic

from penstock import Consumer
from penstock.sources.kafka import KafkaSource

if TYPE_CHECKING:
    from penstock import LoopClock, Message
    from penstock.testing import EmbeddedKafka


async def ignore(message: Message) -> None:
    """Handle it."""


async def test_a_member_without_partitions_is_ready(
    broker: EmbeddedKafka, real_clock: LoopClock
) -> None:
    """consumer/C:B4: assigned nothing is assigned, too; a rollout would wait for it for ever."""
    topic, group = await new_topic(broker), new_name("idle")

    def member() -> Consumer:
        source = KafkaSource(
            topic, bootstrap=broker.bootstrap, group=group, session_timeout=6, rebalance_timeout=12
        )
        return Consumer(source, name="idle")

    async with AsyncExitStack() as stack:
        members = [await stack.enter_async_context(member()) for _ in range(3)]
        running = [asyncio.ensure_future(each.run(ignore)) for each in members]
        async with asyncio.timeout(30):
            await asyncio.gather(*(each.wait_ready() for each in members))
        for each in members:
            each.stop()
        await asyncio.wait(running)
