"""O-T23, consumer/C:N7: the suite of sources, on a real broker, with both protocols of groups.

Proven here: O-T5, O-T6, O-T7, O-T8, consumer/C:C1, consumer/C:C2, consumer/C:C3, consumer/C:C4,
consumer/C:C5, consumer/C:C6, consumer/C:R1, consumer/C:R2, consumer/C:R3, consumer/C:R4,
consumer/C:N1.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import pytest
from tests.conformance.consumed_source import ConsumedSourceConformance
from tests.conformance.order_tests import RebalanceTests
from tests.kafka.confluent.confluent_help import lose, source_of, stored
from tests.kafka.source import kafka_help

from sluicegate.kafka import ConfluentKafkaSource
from sluicegate.testing.conformance.source.claims import ClaimTests
from sluicegate.testing.conformance.source.delivery import (
    CommitTests,
    DeclarationTests,
    DeliveryTests,
)
from sluicegate.testing.conformance.source.subject import SourceUnderTest

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sluicegate.consumer import Position, Source, TopicPartition
    from sluicegate.testing import EmbeddedKafka


class Groups(SourceUnderTest):
    """All sources of a topic are members of the group of its name."""

    protocol: ClassVar[str]
    capabilities = ConfluentKafkaSource.capabilities
    patience = 60.0

    @pytest.fixture(autouse=True)
    def _broker(self, broker: EmbeddedKafka) -> None:
        self.broker = broker
        self.topics: dict[Source, str] = {}

    async def new_topic(self, partitions: int) -> str:
        return await kafka_help.new_topic(self.broker, partitions)

    def source(self, topic: str) -> Source:
        source = source_of(self.broker, topic, topic, protocol=self.protocol, commit_timeout=10.0)
        self.topics[source] = topic
        return source

    async def lose(self, source: Source) -> None:
        assert isinstance(source, ConfluentKafkaSource)
        await lose(self.broker, self.topics[source], source)

    async def append(
        self, topic: str, partition: int, entries: Sequence[tuple[bytes | None, bytes]]
    ) -> None:
        await kafka_help.produce(self.broker, topic, *entries, partition=partition)

    async def append_undecodable(self, topic: str, partition: int, key: bytes) -> None:
        await kafka_help.produce_undecodable(
            self.broker, topic, (key, b"0", True), partition=partition
        )

    async def stored(self, topic: str) -> Mapping[TopicPartition, Position]:
        return await stored(self.broker, topic)

    async def leave_hole(self, topic: str, partition: int) -> None:
        await kafka_help.leave_hole(self.broker, topic, partition)


class TestPartsCooperative(Groups, DeliveryTests, CommitTests, RebalanceTests, DeclarationTests):
    """The members assign the partitions. Only the tests for which the source matters."""

    protocol = "cooperative"


class TestPartsByTheBroker(Groups, ClaimTests):
    """KIP-848: the broker assigns the partitions. Only the tests for which the protocol matters."""

    protocol = "consumer"


@pytest.mark.long
class TestCooperative(Groups, ConsumedSourceConformance):
    """The whole suite."""

    protocol = "cooperative"


@pytest.mark.long
class TestByTheBroker(Groups, ConsumedSourceConformance):
    """The whole suite."""

    protocol = "consumer"
