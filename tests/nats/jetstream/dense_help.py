"""A stream whose partitions have offsets from 0 without gaps, for the conformance suite.

The suite expects such offsets, and appends records with its own keys to partitions that it names.
Here a key is a token of the subject that the stream maps to that partition, and the offset of a
message is its index among the messages of the partition.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from bisect import bisect_left
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from sluicegate.consumer import (
    Fetched,
    Position,
    Record,
    Settled,
    TopicPartition,
    UndecodableRecord,
)
from sluicegate.nats import JetStreamSource

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Collection, Iterable, Mapping, Sequence

    from sluicegate.consumer import ClaimHost, SourceClaim, SourceRecord, Unread


def partition_of(token: str, partitions: int) -> int:
    """The partition of a token, by the server's hash: 32-bit FNV-1a."""
    value = 2166136261
    for byte in token.encode():
        value = (value ^ byte) * 16777619 % (1 << 32)
    return value % partitions


def token_in(partition: int, partitions: int, key: bytes | None) -> str:
    """A token for a key in a partition."""
    name = "none" if key is None else key.decode()
    tokens = (f"{name}-{number}" for number in itertools.count())
    return next(token for token in tokens if partition_of(token, partitions) == partition)


async def publish_raw(url: str, subject: bytes, headers: bytes = b"", payload: bytes = b"") -> int:
    """Publish bytes that no client of Python would send; return the sequence number."""
    address = urlsplit(url)
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    try:
        block = b"NATS/1.0\r\n" + headers + b"\r\n"
        sizes = b"%d %d" % (len(block), len(block) + len(payload))
        connect = b'CONNECT {"verbose": false, "headers": true, "no_responders": true}\r\n'
        publish = b"HPUB " + subject + b" answer " + sizes + b"\r\n" + block + payload + b"\r\n"
        writer.write(connect + b"SUB answer 1\r\n" + publish)
        while not (line := await reader.readline()).startswith(b"MSG answer"):
            assert line, "the server has closed the connection"
            assert not line.startswith(b"-ERR"), line
        sequence: int = json.loads(await reader.readline())["seq"]
        return sequence
    finally:
        writer.close()


class DenseTopic:
    """The sequence numbers of each partition's messages, in order."""

    def __init__(self, partitions: int) -> None:
        self.sequences: list[list[int]] = [[] for _ in range(partitions)]

    def learn(self, partition: int, sequence: int) -> None:
        """Record the place of an appended message."""
        self.sequences[partition].append(sequence)

    def dense(self, partition: int, sequence: int) -> int:
        """The number of messages of a partition before a sequence number."""
        return bisect_left(self.sequences[partition], sequence)

    def sparse(self, partition: int, offset: int) -> int:
        """The sequence number of a message; for the end, the number after the last one."""
        known = self.sequences[partition]
        if offset < len(known):
            return known[offset]
        return known[-1] + 1 if known else 1


class DenseClaim:
    """A claim of the source, around that of the suite's host."""

    def __init__(self, outer: SourceClaim, topic: DenseTopic) -> None:
        self.outer = outer
        self.partition = outer.partition
        self._topic = topic

    @property
    def is_closed(self) -> bool:
        return self.outer.is_closed

    def pass_settled(self, offset: int, least: int) -> int:
        del least
        return offset

    def take_settled(self) -> Settled:
        offsets, given_up = self.outer.take_settled()
        number = self.partition.partition

        def sparse(each: Iterable[int]) -> list[int]:
            return [self._topic.sparse(number, offset) for offset in each]

        return Settled(sparse(offsets), sparse(given_up))


class DenseHost:
    """Forwards the claims, with dense positions."""

    def __init__(self, host: ClaimHost, topic: DenseTopic) -> None:
        self._host = host
        self._topic = topic
        self.inner: dict[SourceClaim, DenseClaim] = {}
        """The claims of the source, by the host's claims."""

    @property
    def room_bytes(self) -> int:
        return self._host.room_bytes

    def assigned(self, starts: Mapping[TopicPartition, Position]) -> Sequence[SourceClaim]:
        dense = {
            each: Position(self._topic.dense(each.partition, at.offset))
            for each, at in starts.items()
        }
        outer = self._host.assigned(dense)
        made = [DenseClaim(claim, self._topic) for claim in outer]
        self.inner.update(zip(outer, made, strict=True))
        return made

    async def revoked(
        self, claims: Collection[SourceClaim], within: float
    ) -> Mapping[SourceClaim, Position]:
        answered = await self._host.revoked(outer_of(claims), within)
        return {self.inner[claim]: at for claim, at in answered.items()}

    def ended(self, claims: Collection[SourceClaim]) -> None:
        self._host.ended(outer_of(claims))

    def cancelled(self, claim: SourceClaim, offsets: Collection[int]) -> None:
        raise AssertionError(f"nothing cancels {offsets} of {claim}")

    def reported(self, trouble: str | None) -> None:
        self._host.reported(trouble)


def outer_of(claims: Iterable[SourceClaim]) -> list[SourceClaim]:
    """The host's claims."""
    return [claim.outer for claim in claims if isinstance(claim, DenseClaim)]


class DenseSource:
    """The source as the suite expects it."""

    capabilities = replace(JetStreamSource.capabilities, extends=False)

    def __init__(self, source: JetStreamSource, topic: DenseTopic) -> None:
        self._source = source
        self._topic = topic
        self._host: DenseHost | None = None

    @property
    def _inner(self) -> dict[SourceClaim, DenseClaim]:
        assert self._host is not None
        return self._host.inner

    @asynccontextmanager
    async def open(self, host: ClaimHost) -> AsyncIterator[None]:
        self._host = DenseHost(host, self._topic)
        async with self._source.open(self._host):
            yield

    async def fetch(self, claims: Sequence[SourceClaim], most: int) -> Sequence[Fetched] | None:
        fetched = await self._source.fetch([self._inner[claim] for claim in claims], most)
        return None if fetched is None else [self._dense(each) for each in fetched]

    def _dense(self, fetched: Fetched) -> Fetched:
        (claim,) = outer_of([fetched.claim])
        records = [self._record(each) for each in fetched.records]
        return Fetched(claim, records, failed=fetched.failed)

    def _record(self, record: SourceRecord) -> Record:
        name = str(record.key).rpartition("-")[0]
        if isinstance(record, UndecodableRecord):
            offset = self._topic.dense(record.partition, record.offset)
            return replace(record, offset=offset, key=name.encode())
        return Record(
            record.topic,
            record.partition,
            self._topic.dense(record.partition, record.offset),
            None if name == "none" else name.encode(),
            record.value,
            record.headers,
            record.timestamp,
        )

    async def commit(self, positions: Mapping[SourceClaim, Position]) -> Collection[SourceClaim]:
        inner: dict[SourceClaim, Position] = {
            self._inner[claim]: at for claim, at in positions.items()
        }
        return outer_of(await self._source.commit(inner))

    async def ends(self, claims: Collection[SourceClaim]) -> Mapping[SourceClaim, int]:
        ends = await self._source.ends([self._inner[claim] for claim in claims])
        return {
            outer: self._topic.dense(claim.partition.partition, end)
            for claim, end in ends.items()
            for outer in outer_of([claim])
        }

    async def lag(self, positions: Mapping[SourceClaim, int]) -> Mapping[SourceClaim, Unread]:
        unread = await self._source.lag({self._inner[claim]: at for claim, at in positions.items()})
        return {outer: each for claim, each in unread.items() for outer in outer_of([claim])}

    def __repr__(self) -> str:
        return repr(self._source)
