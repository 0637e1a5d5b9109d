"""O-T23, consumer/C:N7: the suite of sources, on a real broker.

Proven here: O-T5, O-T6, O-T7, O-T8, consumer/C:C1, consumer/C:C2, consumer/C:C3, consumer/C:C4,
consumer/C:C5, consumer/C:C6, consumer/C:R1, consumer/C:R2, consumer/C:R4, consumer/C:N1.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.conformance.consumed_source import ConsumedSourceConformance
from tests.kafka.source import kafka_help

from sluicegate.kafka import KafkaAccess, KafkaSource

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sluicegate.consumer import Position, Source, TopicPartition
    from sluicegate.testing import EmbeddedKafka


class TestKafkaSource(ConsumedSourceConformance):
    """All sources of a topic are members of the group of its name."""

    capabilities = KafkaSource.capabilities
    patience = 60.0

    @pytest.fixture(autouse=True)
    def _broker(self, broker: EmbeddedKafka) -> None:
        self.broker = broker
        self.names: dict[Source, tuple[str, str]] = {}

    async def new_topic(self, partitions: int) -> str:
        return await kafka_help.new_topic(self.broker, partitions)

    def source(self, topic: str) -> Source:
        client = kafka_help.new_name("client")
        source = KafkaSource(
            topic,
            bootstrap=KafkaAccess(self.broker.bootstrap, client_id=client),
            group=topic,
            session_timeout=30.0,
            rebalance_timeout=40.0,
            commit_timeout=10.0,
            client={"isolation_level": "read_committed"},
        )
        self.names[source] = topic, client
        return source

    async def lose(self, source: Source) -> None:
        assert isinstance(source, KafkaSource)
        topic, client = self.names[source]
        await kafka_help.lose(self.broker, topic, source, client)

    async def append(
        self, topic: str, partition: int, entries: Sequence[tuple[bytes | None, bytes]]
    ) -> None:
        await kafka_help.produce(self.broker, topic, *entries, partition=partition)

    async def append_undecodable(self, topic: str, partition: int, key: bytes) -> None:
        await kafka_help.produce_undecodable(
            self.broker, topic, (key, b"0", True), partition=partition
        )

    async def stored(self, topic: str) -> Mapping[TopicPartition, Position]:
        return await kafka_help.stored(self.broker, topic)

    async def leave_hole(self, topic: str, partition: int) -> None:
        await kafka_help.leave_hole(self.broker, topic, partition)
