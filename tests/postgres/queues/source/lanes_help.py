"""A source of a queue whose lanes look like the partitions of a topic, for the conformance suite.

The suite expects offsets from 0 without gaps, and appends records with its own keys to partitions
that it names. Here a partition is the lane of one key of the queue, the suite's key is a header,
and the offset of a job is its number in its lane. Without the methods of `TakesBack` the consumer
treats poison as the suite configures it.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from sluicegate.consumer import (
    Fetched,
    Position,
    Record,
    Settled,
    TopicPartition,
    UndecodableRecord,
)
from sluicegate.postgres import PostgresQueueSource

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Collection, Mapping, Sequence

    from sluicegate.consumer import ClaimHost, SourceClaim, SourceRecord


class LaneTopic:
    """The places of a queue's jobs, by lane."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.places: dict[int, list[int]] = {}
        """In the order of enqueueing."""

    def lane_of(self, place: int) -> int:
        """The lane of a job."""
        return next(lane for lane, places in self.places.items() if place in places)

    def offset_of(self, lane: int, place: int) -> int:
        """The number of jobs of a lane before a place."""
        return sum(each < place for each in self.places[lane])

    def place_of(self, lane: int, offset: int) -> int:
        """The place before which this many jobs of a lane are."""
        places = self.places[lane]
        return places[offset] if offset < len(places) else places[-1] + 1


class LaneClaim:
    """A claim of the source, and the host's claim."""

    is_closed = False

    def __init__(self, partition: TopicPartition, outer: SourceClaim) -> None:
        self.partition = partition
        self.outer = outer

    def pass_settled(self, offset: int, least: int) -> int:
        del least
        return offset

    def take_settled(self) -> Settled:
        raise AssertionError("positions are committed")


class LaneHost:
    """Forwards the claims of the source as claims of partitions."""

    def __init__(self, host: ClaimHost, topic: LaneTopic) -> None:
        self._host = host
        self._topic = topic
        self.inner: dict[SourceClaim, LaneClaim] = {}

    @property
    def room_bytes(self) -> int:
        return self._host.room_bytes

    def assigned(self, starts: Mapping[TopicPartition, Position]) -> Sequence[SourceClaim]:
        topic = self._topic
        lanes = {partition: topic.lane_of(at.offset) for partition, at in starts.items()}
        wanted = {
            TopicPartition(topic.name, lane): Position(topic.offset_of(lane, starts[each].offset))
            for each, lane in lanes.items()
        }
        made: list[SourceClaim] = []
        for partition, outer in zip(starts, self._host.assigned(wanted), strict=True):
            self.inner[outer] = LaneClaim(partition, outer)
            made.append(self.inner[outer])
        return made

    async def revoked(
        self, claims: Collection[SourceClaim], within: float
    ) -> Mapping[SourceClaim, Position]:
        raise AssertionError(f"nothing revokes {claims} within {within}")

    def ended(self, claims: Collection[SourceClaim]) -> None:
        self._host.ended([claim.outer for claim in claims if isinstance(claim, LaneClaim)])

    def cancelled(self, claim: SourceClaim, offsets: Collection[int]) -> None:
        raise AssertionError(f"nothing cancels {offsets} of {claim}")

    def reported(self, trouble: str | None) -> None:
        self._host.reported(trouble)


class LaneSource:
    """The source as the suite expects it."""

    capabilities = replace(PostgresQueueSource.capabilities, takes_back=False, transactions=None)

    def __init__(self, source: PostgresQueueSource, topic: LaneTopic) -> None:
        self.source = source
        self.topic = topic
        self._host: LaneHost | None = None

    @property
    def _open(self) -> LaneHost:
        assert self._host is not None
        return self._host

    @asynccontextmanager
    async def open(self, host: ClaimHost) -> AsyncIterator[None]:
        self._host = LaneHost(host, self.topic)
        async with self.source.open(self._host):
            yield

    async def fetch(self, claims: Sequence[SourceClaim], most: int) -> Sequence[Fetched] | None:
        inner = [self._open.inner[claim] for claim in claims]
        fetched = await self.source.fetch(inner, most)
        return None if fetched is None else [self._dense(each) for each in fetched]

    def _dense(self, fetched: Fetched) -> Fetched:
        assert isinstance(fetched.claim, LaneClaim)
        claim = fetched.claim.outer
        records = [self._record(claim.partition.partition, each) for each in fetched.records]
        return Fetched(claim, records, failed=fetched.failed)

    def _record(self, lane: int, record: SourceRecord) -> Record:
        assert record.key == f"lane {lane}"
        if isinstance(record, UndecodableRecord):
            offset = self.topic.offset_of(lane, record.offset)
            return replace(
                record,
                topic=self.topic.name,
                partition=lane,
                offset=offset,
                key=None,
                has_key=False,
            )
        headers = dict(record.headers)
        return Record(
            self.topic.name,
            lane,
            self.topic.offset_of(lane, record.offset),
            headers.get("key"),
            headers["value"],
            (),
            record.timestamp,
        )

    async def commit(self, positions: Mapping[SourceClaim, Position]) -> Collection[SourceClaim]:
        wanted: dict[SourceClaim, Position] = {
            self._open.inner[claim]: Position(
                self.topic.place_of(claim.partition.partition, at.offset)
            )
            for claim, at in positions.items()
        }
        stored = await self.source.commit(wanted)
        return [claim.outer for claim in stored if isinstance(claim, LaneClaim)]

    async def ends(self, claims: Collection[SourceClaim]) -> Mapping[SourceClaim, int]:
        inner = [self._open.inner[claim] for claim in claims]
        found = await self.source.ends(inner)
        return {
            claim.outer: self.topic.offset_of(claim.outer.partition.partition, end)
            for claim, end in found.items()
            if isinstance(claim, LaneClaim)
        }
