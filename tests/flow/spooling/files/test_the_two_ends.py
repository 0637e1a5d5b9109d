"""The two ends of a spool fulfil the contracts of sources and of sinks.

White box: the stored position is the first offset that the files have as unsettled.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from tests.conformance.consumed_source import OrderedSourceConformance

from sluicegate import RowBatch, flow, send
from sluicegate.consumer import Position, TopicPartition, UndecodableRecord
from sluicegate.flow.spooling.source import SpoolSource
from sluicegate.testing.conformance import SinkConformance

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from sluicegate.batcher import Clock
    from sluicegate.consumer import Fetched, Source, SourceClaim
    from sluicegate.flow import Spool
    from sluicegate.testing import FakeClock


class KeyedSource(SpoolSource):
    """Gives each record the key that the suite has put into its item."""

    async def fetch(self, claims: Sequence[SourceClaim], most: int) -> Sequence[Fetched] | None:
        fetched = await super().fetch(claims, most)
        return fetched and [
            each._replace(records=[*map(self._keyed, each.records)]) for each in fetched
        ]

    def _keyed(self, record: Any) -> Any:
        if isinstance(record, UndecodableRecord):
            return record
        key, _, value = record.value.partition(b"=")
        return replace(record, key=key, value=value)


def decoded(stored: bytes) -> bytes:
    stored.decode()
    return stored


class TestSpoolSource(OrderedSourceConformance):
    """On virtual time; one partition, and the keys are in the items. One object has both ends."""

    capabilities = SpoolSource.capabilities
    lacks = ("loss", "holes")

    @pytest.fixture
    def clock(self, fake_clock: FakeClock) -> Clock:
        return fake_clock

    @pytest.fixture(autouse=True)
    def folder(self, tmp_path: Path) -> None:
        self.path = tmp_path
        self.writers: dict[str, Spool] = {}
        self.senders: dict[str, Spool] = {}

    async def new_topic(self, partitions: int) -> str:
        if partitions > 1:
            pytest.skip("a spool has one partition")
        topic = f"topic-{len(self.senders)}"
        self.senders[topic] = flow.spool(self.path / topic, decode=decoded)
        self.writers[topic] = self.writer(topic)
        self.writers[topic].sink()
        self.senders[topic].source()
        return topic

    def writer(self, topic: str) -> Spool:
        return self.senders[topic]

    def source(self, topic: str) -> Source:
        return KeyedSource(self.senders[topic]._folder)

    async def append(
        self, topic: str, partition: int, entries: Sequence[tuple[bytes | None, bytes]]
    ) -> None:
        async with self.writers[topic].sink() as sink:
            items = [b"%b=%b" % (key or b"", value) for key, value in entries]
            assert await send(sink, RowBatch(items)) == {}

    async def stored(self, topic: str) -> Mapping[TopicPartition, Position]:
        async with self.senders[topic]._folder.opened() as running:
            start = running.store.start
        return {TopicPartition(topic, 0): Position(start)} if start else {}

    async def append_undecodable(self, topic: str, partition: int, key: bytes) -> None:
        await self.append(topic, partition, [(b"\xff", b"")])


class TestSpoolSourceOfTwoProcesses(TestSpoolSource):
    """One object writes, and another one sends, as in two processes."""

    def writer(self, topic: str) -> Spool:
        return flow.spool(self.path / topic)


class TestSpoolSink(SinkConformance[Any]):
    """What is stored is read by the other end."""

    @pytest.fixture(autouse=True)
    def folder(self, tmp_path: Path) -> None:
        self.path = tmp_path / "spool"
        self.spool = flow.spool(self.path)
        self.spool.source()  # the same process reads

    def sink(self) -> Any:
        return self.spool.sink()

    def item(self, number: int) -> Any:
        return {"n": number}

    def bad_item(self, number: int) -> Any:
        return complex(number)

    async def stored(self) -> list[Any]:
        async with self.spool._folder.opened() as running:
            items, _ = await running.read(0, 10_000, 1 << 30)
        return [self.spool._folder.settings.codec.decoded(item) for item in items]
