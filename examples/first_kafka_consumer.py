"""Orders in a Kafka topic, handled in order for each customer, by two consumers in turn."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

from aiokafka import AIOKafkaProducer

from sluicegate import Consumer
from sluicegate.kafka import KafkaSource
from sluicegate.testing import embedded_kafka

if TYPE_CHECKING:
    from sluicegate import Message

ORDERS = [("ann", 1), ("ann", 2), ("bob", 3), ("ann", 4)]


async def place_orders(bootstrap: str) -> None:
    async with AIOKafkaProducer(bootstrap_servers=bootstrap, acks="all") as producer:
        for customer, number in ORDERS:
            value = json.dumps({"number": number}).encode()
            await producer.send_and_wait("orders", value, key=customer.encode())


async def bill_orders(bootstrap: str, until: int) -> None:
    source = KafkaSource("orders", bootstrap=bootstrap, group="billing")
    consumer = Consumer(source, name="billing", drain=5.0)

    async def bill(message: Message) -> None:
        customer, number = message.key.decode(), json.loads(message.value)["number"]
        await asyncio.sleep(0.3 if customer == "ann" else 0.1)  # noqa: TID251  # some work
        print(f"{customer}: order {number} billed")
        if number == until:
            consumer.stop()

    report = await consumer.run(bill)
    for partition, position in report.positions.items():
        print(f"{report}; {partition} is at {position}")


async def main(bootstrap: str) -> None:
    await place_orders(bootstrap)
    await bill_orders(bootstrap, until=3)
    await bill_orders(bootstrap, until=4)


if __name__ == "__main__":
    with embedded_kafka() as broker:
        broker.create_topic("orders")
        asyncio.run(main(broker.bootstrap))
