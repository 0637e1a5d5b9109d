"""Compressed topics: the extra installs what each codec needs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.kafka.source.kafka_help import new_name, new_topic, producer_of

from sluicegate import Consumer
from sluicegate.kafka import KafkaSource

if TYPE_CHECKING:
    from sluicegate import Message
    from sluicegate.testing import EmbeddedKafka

CODECS = ["gzip", "lz4", "snappy", "zstd"]


@pytest.mark.usefixtures("real_clock")
async def test_records_of_every_codec_are_read(broker: EmbeddedKafka) -> None:
    """consumer/C:C5: whatever codecs the producers use, in one topic."""
    topic = await new_topic(broker)
    for codec in CODECS:
        async with producer_of(broker, compression_type=codec, acks="all") as producer:
            await producer.send_and_wait(topic, codec.encode() * 100)
    read: list[object] = []
    source = KafkaSource(topic, bootstrap=broker.bootstrap, group=new_name("group"))
    async with Consumer(source, drain=1.0) as consumer:

        async def handle(message: Message) -> None:
            read.append(message.value)
            if len(read) == len(CODECS):
                consumer.stop()

        await consumer.run(handle)
    assert read == [codec.encode() * 100 for codec in CODECS]
