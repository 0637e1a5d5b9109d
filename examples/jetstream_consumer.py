"""Orders in a stream of NATS JetStream, handled in order for each customer. A failed attempt is
repeated before later orders of its customer, and an unreadable order becomes a dead letter.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from nats.js.api import StreamConfig

import nats
from sluicegate import Ack, Consumer, RetryPolicy, ToDeadLetter
from sluicegate.consumer import Poison
from sluicegate.nats import JetStreamSource
from sluicegate.sinks import DeadLetterRecord, MemorySink
from sluicegate.testing import embedded_nats

if TYPE_CHECKING:
    from sluicegate import Message
    from sluicegate.consumer import Result

ORDERS = [("ann", "1"), ("ann", "2"), ("bob", "3"), ("bob", "four"), ("ann", "5")]


async def place_orders(servers: str) -> None:
    async with await nats.connect(servers) as client:
        stream = client.jetstream()
        await stream.add_stream(StreamConfig(name="ORDERS", subjects=["orders.*"]))
        for customer, number in ORDERS:
            await stream.publish(f"orders.{customer}", number.encode())


async def main(servers: str) -> None:
    await place_orders(servers)
    letters = MemorySink[DeadLetterRecord[dict[str, Any]]]()
    source = JetStreamSource("ORDERS", servers=servers, durable="billing", key=2)
    retry = RetryPolicy(attempts=3)
    consumer = Consumer(source, name="billing", retry=retry, poison=Poison(dead_letters=letters))

    async def bill(message: Message) -> Result:
        if not message.value.isdigit():
            return ToDeadLetter("not a number")
        number = int(message.value)
        print(f"{message.key}: order {number}, try {message.attempt}")
        if number == 1 and message.attempt == 1:
            raise TimeoutError("the ledger does not answer")
        if number == len(ORDERS):
            consumer.stop()
        return Ack()

    print(await consumer.run(bill))
    for letter in letters.items:
        print("dead letter:", letter.item["value"], letter.message)

    async with await nats.connect(servers) as client:
        info = await client.jetstream().consumer_info("ORDERS", "billing")
        print(f"{info.num_ack_pending} pending, {info.num_pending} unread")


if __name__ == "__main__":
    with embedded_nats() as server:
        asyncio.run(main(server.url))
