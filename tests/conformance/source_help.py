"""The hooks of the conformance suite of sources, for memory sources."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import pytest
from tests.conformance.consumed_source import ConsumedSourceConformance

from sluicegate.consumer import MemoryLog, MemorySource, TopicPartition

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sluicegate.batcher import Clock
    from sluicegate.consumer import Position, Source
    from sluicegate.testing import FakeClock

LOGS: dict[str, MemoryLog] = {}


class MemorySourceSuite(ConsumedSourceConformance):
    """Run on virtual time."""

    capabilities = MemorySource.capabilities

    @pytest.fixture
    def clock(self, fake_clock: FakeClock) -> Clock:
        return fake_clock

    async def new_topic(self, partitions: int) -> str:
        topic = f"topic-{len(LOGS)}"
        LOGS[topic] = MemoryLog(
            partitions=[TopicPartition(topic, number) for number in range(partitions)]
        )
        return topic

    def source(self, topic: str) -> Source:
        return MemorySource(LOGS[topic])

    async def append(
        self, topic: str, partition: int, entries: Sequence[tuple[bytes | None, bytes]]
    ) -> None:
        for key, value in entries:
            LOGS[topic].produce(topic, value, key=key, partition=partition)

    async def stored(self, topic: str) -> Mapping[TopicPartition, Position]:
        return dict(LOGS[topic].positions)

    async def rebalance(self, giver: Source, taker: Source) -> None:
        member = cast("MemorySource", giver)
        await member.give(member.claimed[:1], to=cast("MemorySource", taker))

    async def lose(self, source: Source) -> None:
        member = cast("MemorySource", source)
        partitions = member.claimed
        member.lose(partitions)
        member.assign(partitions)

    async def append_undecodable(self, topic: str, partition: int, key: bytes) -> None:
        LOGS[topic].produce(topic, b"", key=key, partition=partition, undecodable=ValueError())

    async def leave_hole(self, topic: str, partition: int) -> None:
        LOGS[topic].skip(TopicPartition(topic, partition))
