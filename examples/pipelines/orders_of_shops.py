"""Minutes of orders into a topic, one per second in each of three shops. Usage:
python orders_of_shops.py localhost:9092 orders
"""

from __future__ import annotations

import asyncio
import json
import sys
from datetime import datetime, timedelta

from aiokafka import AIOKafkaProducer

BEGIN = datetime.fromisoformat("2026-01-01T00:00:00+00:00")
SHOPS = ("Aachen", "Bonn", "Celle")


def order(shop: str, second: int, amount: int) -> bytes:
    at = BEGIN + timedelta(seconds=second)
    return json.dumps({"shop": shop, "at": at.isoformat(), "amount": amount}).encode()


async def main(bootstrap: str, topic: str, first: int = 0, end: int = 3) -> None:
    orders = [order(shop, second, 2) for second in range(first * 60, end * 60) for shop in SHOPS]
    # A minute and 30 seconds newer than the last window's start, so it closes all windows.
    orders.append(order("Dessau", end * 60 + 30, 1))
    async with AIOKafkaProducer(bootstrap_servers=bootstrap) as producer:
        await asyncio.gather(*[await producer.send(topic, each) for each in orders])


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2]))
