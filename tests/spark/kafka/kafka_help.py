"""Kafka records written and read by aiokafka alone."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

if TYPE_CHECKING:
    from collections.abc import Sequence


def produce(bootstrap: str, topic: str, values: Sequence[bytes], *, partitions: int) -> None:
    """Produce evenly over the partitions; return once all records are acknowledged."""

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


def produce_by_key(bootstrap: str, topic: str, events: Sequence[tuple[int, str | None]]) -> None:
    """Produce in order, each into the partition of its key, of two."""

    async def send() -> None:
        async with AIOKafkaProducer(bootstrap_servers=bootstrap, acks="all") as producer:
            for key, value in events:
                data = None if value is None else value.encode()
                await producer.send(topic, data, key=b"%d" % key, partition=key % 2)

    asyncio.run(send())


def consume(bootstrap: str, topic: str) -> list[Any]:
    """Every record now in the topic, read with aiokafka's consumer, in order per partition."""

    async def read() -> list[Any]:
        async with AIOKafkaConsumer(
            topic, bootstrap_servers=bootstrap, auto_offset_reset="earliest"
        ) as consumer:
            ends = await consumer.end_offsets(consumer.assignment())
            found: list[Any] = []
            while any([await consumer.position(each) < end for each, end in ends.items()]):
                for records in (await consumer.getmany(timeout_ms=1000)).values():
                    found += records
            return found

    return asyncio.run(read())
