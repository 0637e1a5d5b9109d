"""A test with a Kafka that is killed meanwhile; needs `sluicegate[testing-kafka]`, Java and
Maven.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

from sluicegate.testing import EmbeddedKafka, embedded_kafka

if TYPE_CHECKING:
    from sluicegate.batcher import LoopClock


async def send(server: EmbeddedKafka, text: bytes) -> None:
    async with AIOKafkaProducer(bootstrap_servers=server.bootstrap, acks="all") as producer:
        await producer.send_and_wait("orders", text)


async def test_an_order_outlives_the_broker(real_clock: LoopClock) -> None:
    with embedded_kafka() as server:
        server.create_topic("orders", partitions=1)
        await send(server, b"a hundred bolts")
        await asyncio.to_thread(server.kill)
        await asyncio.to_thread(server.start)
        async with AIOKafkaConsumer(
            "orders", bootstrap_servers=server.bootstrap, auto_offset_reset="earliest"
        ) as consumer:
            assert (await consumer.getone()).value == b"a hundred bolts"
