"""A broker with topics of records, for one case."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import importlib.util
import itertools
import random
from typing import TYPE_CHECKING, Any

from sluicegate.testing import EmbeddedUnavailable, embedded_kafka

from ..harness import CaseUnavailableError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from sluicegate.testing import EmbeddedKafka

VALUE = b"x" * 100
CHUNK = 5_000
"""Number of records that are sent before the responses are awaited."""


@contextlib.contextmanager
def a_broker() -> Iterator[EmbeddedKafka]:
    """Start a real broker on loopback. Raises `CaseUnavailableError` if that fails."""
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
    """Create a topic with these numbers of records and keys, in an order without a pattern."""
    draw = random.Random(1)
    fill_with(
        broker,
        topic,
        ((b"key-%d" % draw.randrange(keys), value) for _ in range(count)),
        partitions=partitions,
    )


def fill_with(
    broker: EmbeddedKafka,
    topic: str,
    given: Iterable[tuple[bytes, bytes]],
    *,
    partitions: int,
) -> None:
    """Create a topic with these keys and values, each in the partition of its key."""
    broker.create_topic(topic, partitions=partitions)
    asyncio.run(_send(broker.bootstrap, topic, ((key, None, value) for key, value in given)))


def fill_beside(broker: EmbeddedKafka, topic: str, count: int, *, keys: int, others: int) -> None:
    """Create a topic with records of one key in partition 0, and with `count` records of many keys
    in its `others`.
    """
    draw = random.Random(1)
    broker.create_topic(topic, partitions=others + 1)
    given = [
        (b"key-%d" % draw.randrange(keys), 1 + number % others, VALUE) for number in range(count)
    ]
    asyncio.run(_send(broker.bootstrap, topic, [(b"one", 0, VALUE)] * (count // others)))
    asyncio.run(_send(broker.bootstrap, topic, given))


async def _send(
    bootstrap: str, topic: str, given: Iterable[tuple[bytes, int | None, bytes]]
) -> None:
    """Send records with these keys, partitions (`None`: by the key) and values."""
    aiokafka: Any = importlib.import_module("aiokafka")
    producer = aiokafka.AIOKafkaProducer(bootstrap_servers=bootstrap, linger_ms=5)
    await producer.start()
    left = iter(given)
    try:
        while chunk := [*itertools.islice(left, CHUNK)]:
            sent = [
                await producer.send(topic, value, key=key, partition=partition)
                for key, partition, value in chunk
            ]
            await asyncio.gather(*sent)
    finally:
        await producer.stop()
