"""Payments from one Kafka topic into another, each exactly once: records and offsets commit in one
transaction.
"""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

from sluicegate import flow
from sluicegate.consumer import Commits
from sluicegate.kafka import KafkaSink, KafkaSource
from sluicegate.testing import embedded_kafka

if TYPE_CHECKING:
    from sluicegate import Message

COUNT = 2_000


def to_booking(message: Message) -> dict[str, Any]:
    payment = json.loads(message.value)
    return {"account": message.key.decode(), "payment": payment["number"]}


def make_flow(bootstrap: str) -> flow.TransactionalPipe:
    # --8<-- [start:flow]
    source = KafkaSource("transfers", bootstrap=bootstrap, group="books", session_timeout=6.0)
    bookings = KafkaSink("journal", bootstrap=bootstrap, key="account")
    return flow.transaction(source, bookings, to_booking, name="books", commits=Commits(after=500))
    # --8<-- [end:flow]


async def committed(bootstrap: str) -> list[int]:
    """Return the numbers of the payments that readers of committed records see."""
    client: Any = AIOKafkaConsumer(
        "journal",
        bootstrap_servers=bootstrap,
        isolation_level="read_committed",
        auto_offset_reset="earliest",
    )
    async with client as consumer:
        found: list[int] = []
        while len(found) < COUNT:
            found.append(json.loads((await consumer.getone()).value)["payment"])
        return found


async def main(bootstrap: str) -> None:
    client: Any = AIOKafkaProducer(bootstrap_servers=bootstrap, acks="all")
    async with client as producer:
        for number in range(COUNT):
            await producer.send("transfers", b'{"number": %d}' % number, key=b"account 1")

    books = make_flow(bootstrap)
    run = asyncio.create_task(books.run())
    found = await committed(bootstrap)
    books.stop()
    report = await run
    print(f"{len(found)} bookings, each once and in order: {found == list(range(COUNT))}")
    print(f"complete: {report.complete}")


if __name__ == "__main__":
    with embedded_kafka() as broker:
        broker.create_topic("transfers")
        broker.create_topic("journal")
        asyncio.run(main(broker.bootstrap))
