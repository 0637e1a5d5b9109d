"""Memory of large records, over both clients: what is read ahead is limited in bytes."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from tests.kafka.confluent.confluent_help import source_of
from tests.kafka.source.kafka_help import new_name, new_topic, produce
from tests.postgres.streams.source.test_fetch_sizes import peak_below

from sluicegate import Consumer
from sluicegate.consumer import InFlight
from sluicegate.kafka import KafkaSource

if TYPE_CHECKING:
    from sluicegate import Message
    from sluicegate.testing import EmbeddedKafka

pytestmark = pytest.mark.usefixtures("real_clock")

RECORD, RECORDS, PARTITIONS = 1 << 18, 96, 2
WINDOW = 16 * RECORD
PREFETCHED = 1 << 20
"""Bytes per partition that aiokafka has fetched."""


@pytest.mark.long
@pytest.mark.parametrize("client", [pytest.param("aiokafka", marks=pytest.mark.long), "librdkafka"])
async def test_memory_is_twice_the_window_and_what_the_client_has_fetched(
    embedded_kafka: EmbeddedKafka, client: str
) -> None:
    topic, group = await new_topic(embedded_kafka, PARTITIONS), new_name("group")
    consumer: Consumer
    found: list[object] = []

    async def handle(message: Message) -> None:
        found.append((message.partition, message.offset))
        if len(found) in {1, 1 + RECORDS}:
            consumer.stop()
        for _ in range(50):
            await asyncio.sleep(0)

    async def handle_all() -> None:
        nonlocal consumer
        source: Any
        if client == "aiokafka":
            source = KafkaSource(topic, group=group, bootstrap=embedded_kafka.bootstrap)
        else:
            source = source_of(embedded_kafka, topic, group, session_timeout=6.0)
        consumer = Consumer(source, name="c", in_flight=InFlight(bytes=WINDOW), concurrency=2)
        async with asyncio.timeout(100):
            await consumer.run(handle)

    await produce(embedded_kafka, topic, (b"k", b""))  # loads modules
    await handle_all()
    entries = [(b"k%d" % (at % 5), b"x" * RECORD) for at in range(RECORDS // PARTITIONS)]
    for partition in range(PARTITIONS):
        await produce(embedded_kafka, topic, *entries, partition=partition)
    with peak_below(2 * (WINDOW + PARTITIONS * PREFETCHED)):
        await handle_all()
    assert len(found) == len({*found}) == 1 + RECORDS
