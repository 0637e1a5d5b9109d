"""The conformance suite of sources, on NDJSON files that grow: the suite appends records, which the
source itself does not follow.

Proven here: O-T5, O-T7, O-T8.

White box: a file's reader is told of each appended row.
"""

from __future__ import annotations

import sqlite3
from contextlib import asynccontextmanager, closing
from dataclasses import replace
from typing import TYPE_CHECKING
from weakref import WeakSet

import pytest
from tests.conformance.consumed_source import ConsumedSourceConformance

from sluicegate.consumer import Fetched, Position, Record, TopicPartition, UndecodableRecord
from sluicegate.files import FileSource, SQLiteSubscriptions
from sluicegate.files.source.catalog import consumer_position
from sluicegate.files.source.holding import FileReading
from sluicegate.files.source.options import FileOptions
from sluicegate.files.source.readers import RowChunk

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Collection, Mapping, Sequence
    from pathlib import Path

    from sluicegate.consumer import ClaimHost, Source, SourceClaim, SourceRecord
    from sluicegate.files.source.finding import Recorded

LEASE = 3.0
BAD = b"\xff"


class PlainSource:
    """The source with lines of `KEY VALUE` and records without headers, as the suite expects."""

    capabilities = FileSource.capabilities

    def __init__(self, source: FileSource) -> None:
        self.source = source

    @asynccontextmanager
    async def open(self, host: ClaimHost) -> AsyncIterator[None]:
        async with self.source.open(host):
            yield

    async def fetch(self, claims: Sequence[SourceClaim], most: int) -> Sequence[Fetched] | None:
        found = await self.source.fetch(claims, most)
        assert found is not None
        return [
            each._replace(records=[_plain(record) for record in each.records]) for each in found
        ]

    async def commit(self, positions: Mapping[SourceClaim, Position]) -> Collection[SourceClaim]:
        return await self.source.commit(positions)

    async def ends(self, claims: Collection[SourceClaim]) -> Mapping[SourceClaim, int]:
        return await self.source.ends(claims)


def _key(line: bytes) -> None:
    """Refuse the row that has no key; the key of others is not used."""
    if line == BAD:
        raise ValueError("no key")


def _plain(record: SourceRecord) -> Record:
    assert isinstance(record, Record)
    assert isinstance(record.value, bytes)
    if isinstance(record, UndecodableRecord):
        return record
    key, _, value = record.value.partition(b" ")
    return replace(record, key=key or None, value=value, headers=())


class Growing:
    """A reader of a file that grows, and has no end."""

    def __init__(self, path: Path, start: int) -> None:
        self.path, self.row = path, start
        self.rows = start

    def read(self, most: int) -> RowChunk:
        rows = [*enumerate(self._lines())][self.row : self.row + most]
        self.row += len(rows)
        self.rows = self.row
        return RowChunk(rows, self.row)

    @property
    def has_more(self) -> bool:
        """Whether there are rows to read."""
        return len(self._lines()) > self.row

    def _lines(self) -> list[bytes]:
        return self.path.read_bytes().splitlines()

    def close(self) -> None:
        """No file is open."""


class TestFileSource(ConsumedSourceConformance):
    """A topic is a directory; a partition is a file."""

    capabilities = FileSource.capabilities
    lacks = {"holes"}
    patience = 20.0

    @pytest.fixture(autouse=True)
    def _place(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def opened(_: FileOptions, root: Path, recorded: Recorded, start: int) -> Growing:
            return Growing(root / recorded.path, start)

        fill = FileReading.fill

        def fill_if_grown(reading: FileReading) -> None:
            """Read only new rows; a read that finds none would be repeated at once."""
            self.readings.add(reading)
            reader = reading._reader
            if reader is None or (isinstance(reader, Growing) and reader.has_more):
                fill(reading)

        self.readings = WeakSet[FileReading]()
        monkeypatch.setattr(FileOptions, "open", opened)
        monkeypatch.setattr(FileReading, "fill", fill_if_grown)
        self.place = tmp_path
        self.topics = 0

    async def new_topic(self, partitions: int) -> str:
        self.topics += 1
        topic = f"topic{self.topics}"
        (self.place / topic).mkdir()
        for number in range(partitions):
            self._file(topic, number).touch()
        return topic

    def _file(self, topic: str, partition: int) -> Path:
        return self.place / topic / f"{partition}.ndjson"

    def _base(self, topic: str) -> Path:
        return self.place / topic / ".positions"

    def source(self, topic: str) -> Source:
        state = SQLiteSubscriptions(self._base(topic), lease=LEASE)
        path = self.place / topic
        source = FileSource(
            path, subscription=topic, state=state, ends=False, files_at_once=99, poll=0.02, key=_key
        )
        return PlainSource(source)

    async def append(
        self, topic: str, partition: int, entries: Sequence[tuple[bytes | None, bytes]]
    ) -> None:
        with self._file(topic, partition).open("ab") as file:
            file.write(b"".join(b"%s %s\n" % (key or b"", value) for key, value in entries))
        self._announce()

    def _announce(self) -> None:
        """Wake the open sources, which then read the new rows."""
        for reading in self.readings:
            reading._news.fire()

    async def append_undecodable(self, topic: str, partition: int, key: bytes) -> None:
        del key  # it is unknown, since the function of the key refuses this row
        with self._file(topic, partition).open("ab") as file:
            file.write(BAD + b"\n")
        self._announce()

    async def stored(self, topic: str) -> Mapping[TopicPartition, Position]:
        with closing(sqlite3.connect(self._base(topic))) as base:
            rows = base.execute(
                "SELECT slot, position, metadata FROM sluicegate_subscription_slot WHERE position > 0"
            ).fetchall()
        return {
            TopicPartition(topic, slot): consumer_position(Position(at, text))
            for slot, at, text in rows
        }

    async def lose(self, source: Source) -> None:
        """Let another process hold the leases for a moment."""
        assert isinstance(source, PlainSource)
        with closing(sqlite3.connect(self._base(source.source.group))) as base, base:
            base.execute(
                "UPDATE sluicegate_subscription_lock SET epoch = epoch + 1, owner = 'another', "
                "kept_at = 0"
            )
