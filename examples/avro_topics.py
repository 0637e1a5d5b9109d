"""Orders in Avro, with a schema registry: written to a topic, and read from it as rows."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from sluicegate import Batcher, Retry, flow, stack
from sluicegate.consumer import Poison
from sluicegate.kafka import Avro, KafkaSink, KafkaSource, SchemaRegistry
from sluicegate.sinks import MemorySink
from sluicegate.testing import embedded_kafka, embedded_registry

if TYPE_CHECKING:
    from sluicegate import Batch, Message
    from sluicegate.sinks import DeadLetterRecord

ORDER = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [
        {"name": "customer", "type": "string"},
        {
            "name": "amount",
            "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
        },
        {"name": "placed", "type": {"type": "long", "logicalType": "timestamp-millis"}},
    ],
}
NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
ORDERS = [
    {"customer": "ann", "amount": Decimal("30.00"), "placed": NOON},
    {"customer": "bob", "amount": Decimal("12.50"), "placed": NOON},
]


# --8<-- [start:write]
async def write(bootstrap: str, registry: SchemaRegistry) -> None:
    orders = Avro(registry, ORDER, auto_register=True)
    sink = KafkaSink(
        "avro-orders", bootstrap=bootstrap, key="customer", value=orders.encoder("avro-orders")
    )
    async with Batcher(stack(sink, Retry())) as batcher:
        await batcher.add_many(ORDERS)


# --8<-- [end:write]


# --8<-- [start:read]
async def read(bootstrap: str, registry: SchemaRegistry) -> None:
    orders = Avro(registry)

    def to_row(message: Message) -> dict[str, Any]:
        return {"place": message.coordinates, **orders.value(message)}

    async def keep(letters: Batch[DeadLetterRecord[Any]]) -> None:
        for letter in letters:
            print("dead letter:", letter.error_type)
        pipe.stop()

    rows = MemorySink[dict[str, Any]]()
    source = KafkaSource("avro-orders", bootstrap=bootstrap, group="avro-orders", start="earliest")
    pipe = flow.pipe(source, Batcher(rows), to_row, poison=Poison("skip", dead_letters=keep))
    await pipe.run()
    for row in rows.items:
        print(row["place"], row["customer"], row["amount"], row["placed"])


# --8<-- [end:read]


async def main(bootstrap: str, url: str) -> None:
    registry = SchemaRegistry(url)
    await write(bootstrap, registry)
    async with Batcher(KafkaSink("avro-orders", bootstrap=bootstrap)) as batcher:
        await batcher.add(b"\0\0\0\0\x63oh no")  # with an id that no registry has
    await read(bootstrap, SchemaRegistry(url))


if __name__ == "__main__":
    with embedded_kafka() as broker, embedded_registry() as there:
        broker.create_topic("avro-orders")
        asyncio.run(main(broker.bootstrap, there.url))
