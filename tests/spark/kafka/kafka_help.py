"""Records into Kafka."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from aiokafka import AIOKafkaProducer

if TYPE_CHECKING:
    from collections.abc import Sequence


def produce(bootstrap: str, topic: str, values: Sequence[bytes], *, partitions: int) -> None:
    """Spread evenly over the partitions, and return when all are acknowledged."""

    async def send() -> None:
        async with AIOKafkaProducer(
            bootstrap_servers=bootstrap, acks="all", linger_ms=5
        ) as producer:
            sent = [
                await producer.send(topic, value, partition=number % partitions)
                for number, value in enumerate(values)
            ]
            await asyncio.gather(*sent)

    asyncio.run(send())
