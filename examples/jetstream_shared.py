"""A stream that is divided into partitions, shared by two consumers in order per key. One of them
stops, and the other one takes over its partitions.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from nats.js.api import StreamConfig, SubjectTransform

import nats
from sluicegate import Consumer
from sluicegate.nats import JetStreamSource, partitioned
from sluicegate.testing import embedded_nats

if TYPE_CHECKING:
    from sluicegate import Message

PARTITIONS = 8
CUSTOMERS = ("ann", "bob", "joe", "tom")


async def create_stream(servers: str) -> None:
    source, destination = partitioned("orders.*", PARTITIONS)
    config = StreamConfig(
        name="ORDERS",
        subjects=["orders.*"],
        subject_transform=SubjectTransform(src=source, dest=destination),
    )
    async with await nats.connect(servers) as client:
        await client.jetstream().add_stream(config)


class Billing:
    """A member of the group; here both members are in one process."""

    def __init__(self, servers: str, name: str) -> None:
        source = JetStreamSource(
            "ORDERS", servers=servers, durable="billing", partitions=PARTITIONS, member=name, key=2
        )
        self.name = name
        self.consumer = Consumer(source, name=name)
        self.billed: dict[str, list[int]] = {}

    async def bill(self, message: Message) -> None:
        self.billed.setdefault(message.key, []).append(int(message.value))
        billed.release()


billed = asyncio.Semaphore(0)


async def place_orders(servers: str, numbers: range) -> None:
    async with await nats.connect(servers) as client:
        for number in numbers:
            for customer in CUSTOMERS:
                await client.jetstream().publish(f"orders.{customer}", str(number).encode())
    for _ in range(len(numbers) * len(CUSTOMERS)):
        await billed.acquire()


async def main(servers: str) -> None:
    await create_stream(servers)
    first, second = members = [Billing(servers, name) for name in ("billing-0", "billing-1")]
    async with asyncio.TaskGroup() as tasks:
        runs = [tasks.create_task(each.consumer.run(each.bill)) for each in members]
        await place_orders(servers, range(1, 3))
        first.consumer.stop()
        await runs[0]
        await place_orders(servers, range(3, 5))
        second.consumer.stop()
    for each in members:
        print(each.name, dict(sorted(each.billed.items())))


if __name__ == "__main__":
    with embedded_nats() as server:
        asyncio.run(main(server.url))
