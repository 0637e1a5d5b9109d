"""A source of streams whose slots look like the partitions of a topic, for the conformance suite.

The suite expects offsets from 0 without gaps, and appends records with its own keys to partitions
that it names. Here a partition is a slot, a key is a stream of that slot, and the offset of a
message is its index among the messages of the slot.

White box: the slot of a stream.
"""

from __future__ import annotations

import itertools
import json
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from sluicegate.consumer import (
    Fetched,
    Position,
    Record,
    Settled,
    TopicPartition,
    UndecodableRecord,
)
from sluicegate.postgres import PostgresStreamSource
from sluicegate.postgres.streams.selection import slot_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Collection, Iterable, Mapping, Sequence

    from sluicegate.consumer import ClaimHost, SourceClaim, SourceRecord, Unread


def stream_in(slot: int, key: bytes | None) -> str:
    """The name of a stream for a key in this slot."""
    names = (f"{'none' if key is None else key.decode()}-{n}" for n in itertools.count())
    return next(name for name in names if slot_of(name) == slot)


@dataclass
class DenseTopic:
    """The known positions of a topic's messages, by partition and offset."""

    partitions: int
    counts: dict[int, int] = field(default_factory=dict)
    positions: dict[int, dict[int, int]] = field(default_factory=dict)

    def next_offset(self, partition: int) -> int:
        """The offset of a message that is about to be appended."""
        offset = self.counts.get(partition, 0)
        self.counts[partition] = offset + 1
        return offset

    def learn(self, partition: int, offset: int, position: int) -> None:
        """Record the position of a message."""
        self.positions.setdefault(partition, {})[offset] = position

    def position_of(self, partition: int, offset: int) -> int:
        """The position before which this many messages are."""
        return self.positions[partition][offset - 1] + 1 if offset else 0

    def offset_of(self, partition: int, position: int) -> int:
        """The number of messages before a position."""
        return sum(each < position for each in self.positions.get(partition, {}).values())


class Unwanted:
    """The claim of a slot that is not a partition."""

    is_closed = False

    def __init__(self, partition: TopicPartition) -> None:
        self.partition = partition

    def pass_settled(self, offset: int, least: int) -> int:
        del least
        return offset

    def take_settled(self) -> Settled:
        raise AssertionError("positions are committed")


class DenseHost:
    """Forwards the claims of slots that are partitions."""

    def __init__(self, host: ClaimHost, topic: DenseTopic, name: str) -> None:
        self._host = host
        self._topic = topic
        self.name = name
        self.inner: dict[SourceClaim, SourceClaim] = {}
        """The claims of the source, by the host's claims."""

    @property
    def room_bytes(self) -> int:
        return self._host.room_bytes

    def assigned(self, starts: Mapping[TopicPartition, Position]) -> Sequence[SourceClaim]:
        wanted = {
            TopicPartition(self.name, slot): Position(
                self._topic.offset_of(slot, at.offset), at.metadata
            )
            for (_, slot), at in starts.items()
            if slot < self._topic.partitions
        }
        claims = {claim.partition.partition: claim for claim in self._host.assigned(wanted)}
        made: list[SourceClaim] = []
        for partition in starts:
            inner = InnerClaim(partition, claims.get(partition.partition))
            if inner.outer is not None:
                self.inner[inner.outer] = inner
            made.append(inner)
        return made

    def outer(self, claims: Iterable[SourceClaim]) -> list[SourceClaim]:
        """The host's claims for these claims of the source."""
        found = [claim.outer for claim in claims if isinstance(claim, InnerClaim)]
        return [claim for claim in found if claim is not None]

    async def revoked(
        self, claims: Collection[SourceClaim], within: float
    ) -> Mapping[SourceClaim, Position]:
        outer = self.outer(claims)
        positions = await self._host.revoked(outer, within) if outer else {}
        return {self.inner[claim]: self.sparse(claim, at) for claim, at in positions.items()}

    def sparse(self, claim: SourceClaim, at: Position) -> Position:
        """A position of the host in the form that the source stores."""
        position = self._topic.position_of(claim.partition.partition, at.offset)
        return Position(position, at.metadata)

    def ended(self, claims: Collection[SourceClaim]) -> None:
        if outer := self.outer(claims):
            self._host.ended(outer)

    def cancelled(self, claim: SourceClaim, offsets: Collection[int]) -> None:
        raise AssertionError(f"nothing cancels {offsets} of {claim}")

    def reported(self, trouble: str | None) -> None:
        self._host.reported(trouble)


class InnerClaim(Unwanted):
    """A claim of the source; with the host's claim if the slot is a partition."""

    def __init__(self, partition: TopicPartition, outer: SourceClaim | None) -> None:
        super().__init__(partition)
        self.outer = outer


class DenseSource:
    """The source as the suite expects it."""

    capabilities = replace(PostgresStreamSource.capabilities, transactions=None)

    def __init__(self, source: PostgresStreamSource, topic: DenseTopic, name: str) -> None:
        self.source = source
        self._topic = topic
        self._name = name
        self._host: DenseHost | None = None

    @property
    def host(self) -> DenseHost:
        assert self._host is not None
        return self._host

    @asynccontextmanager
    async def open(self, host: ClaimHost) -> AsyncIterator[None]:
        self._host = DenseHost(host, self._topic, self._name)
        async with self.source.open(self._host):
            yield

    async def fetch(self, claims: Sequence[SourceClaim], most: int) -> Sequence[Fetched] | None:
        fetched = await self.source.fetch(self._inner(claims), most)
        return None if fetched is None else [self._dense(each) for each in fetched]

    def _inner(self, claims: Iterable[SourceClaim]) -> list[SourceClaim]:
        return [self.host.inner[claim] for claim in claims if claim in self.host.inner]

    def _dense(self, fetched: Fetched) -> Fetched:
        (claim,) = self.host.outer([fetched.claim])
        records = [self._record(each) for each in fetched.records]
        reached = self._topic.offset_of(claim.partition.partition, fetched.next_offset)
        return Fetched(claim, records, reached)

    def _record(self, record: SourceRecord) -> Record:
        data = json.loads(bytes(record.value))  # type: ignore[call-overload]
        key = str(record.key).rpartition("-")[0]
        self._topic.learn(record.partition, data["at"], record.offset)
        named = [name for name, _ in record.headers]
        if isinstance(record, UndecodableRecord):
            assert named == ["metadata", "type", "id", "version"]
            return replace(record, topic=self._name, offset=data["at"], key=key.encode())
        assert named == ["type", "id", "version"]
        return Record(
            self._name,
            record.partition,
            data["at"],
            None if key == "none" else key.encode(),
            data["value"].encode(),
            (),
            record.timestamp,
        )

    async def commit(self, positions: Mapping[SourceClaim, Position]) -> Collection[SourceClaim]:
        inner = {
            self.host.inner[claim]: self.host.sparse(claim, at) for claim, at in positions.items()
        }
        return self.host.outer(await self.source.commit(inner))

    async def ends(self, claims: Collection[SourceClaim]) -> Mapping[SourceClaim, int]:
        ends = await self.source.ends(self._inner(claims))
        return {
            claim: self._topic.offset_of(claim.partition.partition, end)
            for inner, end in ends.items()
            for claim in self.host.outer([inner])
        }

    async def lag(self, positions: Mapping[SourceClaim, int]) -> Mapping[SourceClaim, Unread]:
        inner = {
            self.host.inner[claim]: self.host.sparse(claim, Position(at)).offset
            for claim, at in positions.items()
        }
        unread = await self.source.lag(inner)
        return {outer: unread[claim] for claim in inner for outer in self.host.outer([claim])}
