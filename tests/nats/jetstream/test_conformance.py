"""The conformance suite of sources, on a partitioned stream of a real NATS server.

Proven here: O-T17, O-T23, consumer/C:C7, consumer/C:N9, consumer/C:R3.
"""

from __future__ import annotations

import contextlib
import itertools
from typing import TYPE_CHECKING

import pytest
from nats.js.api import StreamConfig, SubjectTransform
from nats.js.errors import NotFoundError
from tests.conformance.consumed_source import ConsumedSourceConformance
from tests.nats.jetstream.dense_help import DenseSource, DenseTopic, publish_raw, token_in

import nats
from sluicegate.consumer import Position, TopicPartition
from sluicegate.nats import JetStreamSource, partitioned

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sluicegate.consumer import Source
    from sluicegate.testing import EmbeddedNats

_numbers = itertools.count(1)


class TestJetStreamSource(ConsumedSourceConformance):
    """A topic is a stream; all sources of it are one group."""

    capabilities = DenseSource.capabilities
    lacks = {"holes"}
    patience = 60.0

    @pytest.fixture(autouse=True)
    def _server(self, embedded_nats: EmbeddedNats) -> None:
        self.url = embedded_nats.url
        self.topics: dict[str, DenseTopic] = {}

    async def new_topic(self, partitions: int) -> str:
        topic = f"conformance-{next(_numbers)}"
        source, destination = partitioned(f"{topic}.*", partitions)
        async with await nats.connect(self.url) as client:
            await client.jetstream().add_stream(
                StreamConfig(
                    name=topic,
                    subjects=[f"{topic}.*"],
                    subject_transform=SubjectTransform(src=source, dest=destination),
                )
            )
        self.topics[topic] = DenseTopic(partitions)
        return topic

    def source(self, topic: str) -> Source:
        dense = self.topics[topic]
        made = JetStreamSource(
            topic,
            servers=self.url,
            durable="d",
            partitions=len(dense.sequences),
            key=2,
            double_ack=True,
        )
        return DenseSource(made, dense)

    async def append(
        self, topic: str, partition: int, entries: Sequence[tuple[bytes | None, bytes]]
    ) -> None:
        dense = self.topics[topic]
        async with await nats.connect(self.url) as client:
            stream = client.jetstream()
            for key, value in entries:
                token = token_in(partition, len(dense.sequences), key)
                stored = await stream.publish(f"{topic}.{token}", value)
                dense.learn(partition, stored.seq)

    async def append_undecodable(self, topic: str, partition: int, key: bytes) -> None:
        dense = self.topics[topic]
        subject = f"{topic}.{token_in(partition, len(dense.sequences), key)}"
        sequence = await publish_raw(self.url, subject.encode(), b"\xff\xfe: v\r\n")
        dense.learn(partition, sequence)

    async def stored(self, topic: str) -> Mapping[TopicPartition, Position]:
        dense, found = self.topics[topic], dict[TopicPartition, Position]()
        async with await nats.connect(self.url) as client:
            for partition in range(len(dense.sequences)):
                try:
                    info = await client.jetstream().consumer_info(topic, f"d-{partition}")
                except NotFoundError:
                    continue
                floor = info.ack_floor.stream_seq if info.ack_floor else 0
                if offset := dense.dense(partition, floor + 1):
                    found[TopicPartition(topic, partition)] = Position(offset)
        return found

    async def lose(self, source: Source) -> None:
        """Delete the consumers, as an operator might; one may not be back since the last time."""
        (topic,) = [each for each in self.topics if repr(each) in repr(source)]
        async with await nats.connect(self.url) as client:
            for partition in range(len(self.topics[topic].sequences)):
                with contextlib.suppress(NotFoundError):
                    await client.jetstream().delete_consumer(topic, f"d-{partition}")
