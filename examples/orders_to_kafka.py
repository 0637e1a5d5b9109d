"""Orders to a Kafka topic, in order per customer. Each receipt has the place of its record."""

from __future__ import annotations

import asyncio
from typing import Any

from sluicegate import Batcher, DeadLetter, Retry, Timeout, stack
from sluicegate.kafka import KafkaSink
from sluicegate.testing import embedded_kafka

ORDERS: list[dict[str, Any]] = [
    {"customer": "ann", "amount": 30},
    {"customer": "dan", "amount": 25},
    {"customer": "ann", "amount": 10},
    {"customer": "dan", "amount": float("nan")},
]


def make_batcher(bootstrap: str) -> Batcher[dict[str, Any]]:
    # --8<-- [start:sink]
    orders = KafkaSink(
        "shipments",
        bootstrap=bootstrap,
        key="customer",
        headers=lambda _: {"source": b"shop"},
        compression="lz4",
    )
    letters = KafkaSink("shipments-dead", bootstrap=bootstrap)
    sink = stack(orders, Timeout(20.0), Retry(attempts=5), DeadLetter(letters))
    # --8<-- [end:sink]
    return Batcher(sink, name="shipments")


async def main(bootstrap: str) -> None:
    async with make_batcher(bootstrap) as batcher:
        receipts = [await batcher.submit(order) for order in ORDERS]
        for order, receipt in zip(ORDERS, receipts, strict=True):
            outcome = await receipt.settled()  # of every order, also of a dead letter
            print(order["customer"], order["amount"], outcome, receipt.detail)
    assert batcher.report is not None
    print(batcher.report.tally)


if __name__ == "__main__":
    with embedded_kafka() as broker:
        broker.create_topic("shipments", partitions=2)
        broker.create_topic("shipments-dead")
        asyncio.run(main(broker.bootstrap))
