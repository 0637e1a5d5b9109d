"""A broker with topics of records, for one case."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import random
from typing import TYPE_CHECKING, Any

from penstock.testing import EmbeddedUnavailable, embedded_kafka

from ..harness import CaseUnavailableError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.testing.servers.kafka import EmbeddedKafka

VALUE = b"x" * 100
CHUNK = 5_000
"""Records that are sent before the answers are awaited."""


@contextlib.contextmanager
def a_broker() -> Iterator[EmbeddedKafka]:
    """A real broker on loopback. Raises `CaseUnavailableError` where none can be started."""
    if importlib.util.find_spec("aiokafka") is None:
        raise CaseUnavailableError("aiokafka is not installed")
    with contextlib.ExitStack() as opened:
        try:
            broker = opened.enter_context(embedded_kafka(heap="512m"))
        except EmbeddedUnavailable as reason:
            raise CaseUnavailableError(str(reason)) from None
        yield broker


def fill(
    broker: EmbeddedKafka,
    topic: str,
    count: int,
    *,
    keys: int,
    partitions: int = 1,
    value: bytes = VALUE,
) -> None:
    """Create a topic with so many records of so many keys, in an order without a pattern."""
    broker.create_topic(topic, partitions=partitions)
    asyncio.run(_send(broker.bootstrap, topic, count, keys, value))


async def _send(bootstrap: str, topic: str, count: int, keys: int, value: bytes) -> None:
    from aiokafka import AIOKafkaProducer

    draw = random.Random(1)
    producer: Any = AIOKafkaProducer(bootstrap_servers=bootstrap, linger_ms=5)
    await producer.start()
    try:
        for start in range(0, count, CHUNK):
            sent = [
                await producer.send(topic, value, key=b"key-%d" % draw.randrange(keys))
                for _ in range(min(CHUNK, count - start))
            ]
            await asyncio.gather(*sent)
    finally:
        await producer.stop()
