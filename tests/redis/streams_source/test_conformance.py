"""The source of Redis streams in the guide passes the conformance suite of sources.

Proven here: O-T5, O-T7, O-T8, O-T23, consumer/C:C1, consumer/C:C3, consumer/C:R1, consumer/C:R2.
"""

from __future__ import annotations

import itertools
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
from redis.asyncio import Redis
from tests.conformance.consumed_source import OrderedSourceConformance
from tests.examples.example import load

from sluicegate.consumer import Position, TopicPartition

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

    from tests.redis_server import RedisServer

    from sluicegate.consumer import Source

EXAMPLE = load("redis_streams_source")
LEASE = 3.0
NAMES = itertools.count()


class TestTheSourceOfTheGuide(OrderedSourceConformance):
    """consumer/C:N7: entries have the ids `0-1`, `0-2` and so on, which are the offsets from 0 on."""

    capabilities = EXAMPLE.RedisStreamsSource.capabilities
    lacks = ("holes",)
    patience = 8.0

    @pytest.fixture(autouse=True)
    def _server(self, server: RedisServer) -> None:
        self.url = server.url
        self.partitions: dict[str, int] = {}

    @asynccontextmanager
    async def client(self) -> AsyncIterator[Redis]:
        async with Redis.from_url(self.url) as redis:
            yield redis

    async def new_topic(self, partitions: int) -> str:
        topic = f"topic-{next(NAMES)}"
        self.partitions[topic] = partitions
        return topic

    def source(self, topic: str) -> Source:
        source: Source = EXAMPLE.RedisStreamsSource(
            self.url, topic, partitions=self.partitions[topic], group="g", lease=LEASE
        )
        return source

    async def append(
        self, topic: str, partition: int, entries: Sequence[tuple[bytes | None, bytes]]
    ) -> None:
        async with self.client() as redis:
            for key, value in entries:
                named: dict[Any, Any] = {} if key is None else {"key": key}
                await redis.xadd(f"{topic}:{partition}", {**named, "value": value}, id="0-*")

    async def append_undecodable(self, topic: str, partition: int, key: bytes) -> None:
        async with self.client() as redis:
            bad: dict[Any, Any] = {"key": key, "value": b"", b"\xff": b""}
            await redis.xadd(f"{topic}:{partition}", bad, id="0-*")

    async def stored(self, topic: str) -> Mapping[TopicPartition, Position]:
        """The first unsettled entry of each stream, if a settled one precedes it."""
        found: dict[TopicPartition, Position] = {}
        async with self.client() as redis:
            for partition in range(self.partitions[topic]):
                stream = f"{topic}:{partition}"
                if not await redis.exists(stream):
                    continue
                pending = (await redis.xpending(stream, "g"))["min"]
                (group,) = await redis.xinfo_groups(stream)
                first = EXAMPLE.offset_of(pending or group["last-delivered-id"])
                if at := first if pending else first + 1:
                    found[TopicPartition(topic, partition)] = Position(at)
        return found

    async def lose(self, source: Source) -> None:
        """Let another process hold the locks for a moment."""
        async with self.client() as redis:
            topic = next(name for name in self.partitions if repr(name) in repr(source))
            for partition in range(self.partitions[topic]):
                await redis.set(f"{topic}:{partition}:g:lock", "another", px=1)
