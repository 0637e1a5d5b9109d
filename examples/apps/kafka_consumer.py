"""A consumer of a Kafka topic as a service: drains on SIGTERM and Ctrl-C, and serves probes."""

from __future__ import annotations

import asyncio
import logging
import os
from typing import TYPE_CHECKING

import sluicegate
from sluicegate.consumer import serve_probes
from sluicegate.kafka import KafkaAccess, KafkaSource

if TYPE_CHECKING:
    from sluicegate import Message

logger = logging.getLogger("billing")

DRAIN = float(os.environ.get("DRAIN", "15"))
CLOSE_TIMEOUT = 5.0
PROBE_PORT = int(os.environ.get("PROBE_PORT", "8080"))


def make_consumer() -> sluicegate.Consumer:
    source = KafkaSource(
        "orders",
        bootstrap=KafkaAccess(os.environ["KAFKA"], close_timeout=CLOSE_TIMEOUT),
        group="billing",
        instance=os.environ.get("POD_NAME"),  # static membership, if there is a name
        session_timeout=float(os.environ.get("SESSION_TIMEOUT", "45")),
        rebalance_timeout=float(os.environ.get("REBALANCE_TIMEOUT", "60")),
    )
    return sluicegate.Consumer(source, name="billing", concurrency=100, drain=DRAIN)


async def bill(message: Message) -> None:
    await asyncio.sleep(0.05)  # noqa: TID251  # some work
    logger.info("billed %s", message)


async def main() -> None:
    consumer = make_consumer()
    async with serve_probes(consumer, host="0.0.0.0", port=PROBE_PORT), consumer:  # noqa: S104
        await consumer.run(bill)


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    sluicegate.run(main())
