"""Orders to a NATS stream, in order per customer. Each receipt has the place of its message."""

from __future__ import annotations

import asyncio
from typing import Any

import nats
from sluicegate import Batcher, DeadLetter, Retry, Timeout, stack
from sluicegate.nats import NatsSink
from sluicegate.testing import embedded_nats

ORDERS: list[dict[str, Any]] = [
    {"customer": "ann", "amount": 30},
    {"customer": "dan", "amount": 25},
    {"customer": "ann", "amount": 10},
    {"customer": "dan", "amount": float("nan")},
]


def make_batcher(servers: str) -> Batcher[dict[str, Any]]:
    orders = NatsSink(
        lambda order: f"orders.{order['customer']}",
        servers=servers,
        headers=lambda _: {"source": "shop"},
    )
    letters = NatsSink("dead.orders", servers=servers)
    sink = stack(orders, Timeout(20.0), Retry(attempts=5), DeadLetter(letters))
    return Batcher(sink, name="orders", key=lambda order: order["customer"])


async def make_streams(servers: str) -> None:
    async with await nats.connect(servers) as client:
        context = client.jetstream()
        await context.add_stream(name="ORDERS", subjects=["orders.*"])
        await context.add_stream(name="DEAD", subjects=["dead.*"])


async def main(servers: str) -> None:
    await make_streams(servers)
    async with make_batcher(servers) as batcher:
        receipts = [await batcher.submit(order) for order in ORDERS]
        for order, receipt in zip(ORDERS, receipts, strict=True):
            outcome = await receipt.settled()  # of every order, also of a dead letter
            print(order["customer"], order["amount"], outcome, receipt.detail)
    assert batcher.report is not None
    print(batcher.report.tally)


if __name__ == "__main__":
    with embedded_nats() as server:
        asyncio.run(main(server.url))
