"""The source on the how-to page passes the conformance suite of sources."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING

import pytest
from tests.conformance.consumed_source import OrderedSourceConformance
from tests.examples.example import load

from sluicegate.consumer import Position, TopicPartition

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from sluicegate.consumer import Source
    from sluicegate.testing import FakeClock

EXAMPLE = load("own_source")


class TestTheSourceOfTheGuide(OrderedSourceConformance):
    """consumer/C:N7: on virtual time; it is a source for one process."""

    capabilities = EXAMPLE.TableSource.capabilities
    lacks = ("loss", "holes", "undecodable")

    @pytest.fixture
    def clock(self, fake_clock: FakeClock) -> FakeClock:
        return fake_clock

    @pytest.fixture(autouse=True)
    def made(self, tmp_path: Path) -> None:
        self.path = tmp_path / "events.db"
        self.topics = 0
        self.ends: dict[tuple[str, int], int] = {}
        with closing(sqlite3.connect(self.path)) as base:
            base.executescript(EXAMPLE.TABLES)

    def run(self, statement: str, rows: Sequence[Sequence[object]]) -> None:
        with closing(sqlite3.connect(self.path)) as base, base:
            base.executemany(statement, rows)

    async def new_topic(self, partitions: int) -> str:
        self.topics += 1
        topic = f"topic-{self.topics}"
        rows = [(topic, partition) for partition in range(partitions)]
        self.run("insert into partitions values (?, ?, null, null)", rows)
        return topic

    def source(self, topic: str) -> Source:
        source: Source = EXAMPLE.TableSource(self.path, topic, look_every=0.1)
        return source

    async def append(
        self, topic: str, partition: int, entries: Sequence[tuple[bytes | None, bytes]]
    ) -> None:
        first = self.ends.get((topic, partition), 0)
        rows = [(topic, partition, first + at, *entry) for at, entry in enumerate(entries)]
        self.run("insert into events values (?, ?, ?, ?, ?)", rows)
        self.ends[topic, partition] = first + len(entries)

    async def stored(self, topic: str) -> Mapping[TopicPartition, Position]:
        query = "select partition, next, map from partitions where topic = ? and next is not null"
        with closing(sqlite3.connect(self.path)) as base:
            return {
                TopicPartition(topic, partition): Position(at, text)
                for partition, at, text in base.execute(query, [topic])
            }
