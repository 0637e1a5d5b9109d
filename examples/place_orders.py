"""Places orders of ten customers. Usage: KAFKA=host:port python place_orders.py COUNT"""

import asyncio
import json
import os
import sys

from aiokafka import AIOKafkaProducer


async def main(bootstrap: str, count: int) -> None:
    async with AIOKafkaProducer(bootstrap_servers=bootstrap, acks="all") as producer:
        sent = [
            await producer.send(
                "orders", json.dumps({"number": n}).encode(), key=f"customer {n % 10}".encode()
            )
            for n in range(count)
        ]
        await asyncio.gather(*sent)
    print(f"{count} orders placed")


if __name__ == "__main__":
    asyncio.run(main(os.environ["KAFKA"], int(sys.argv[1])))
