"""Tests that drive a source directly: its declaration, its records, its stored positions.

1. `lacks` must not contradict the declaration.
2. The declaration repeats the facts that follow from protocols, so that all are in one
   place.
3. The lag is as exact as declared: the ends of all partitions, or a count.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from ...._core.positions import SettlesInTransaction
from ...._core.source import (
    CountsLag,
    ExtendsRecords,
    KeepsAlive,
    Position,
    TakesBack,
    TransactionalSource,
    UndecodableRecord,
)
from .subject import RecordingHost, SourceUnderTest

if TYPE_CHECKING:
    from collections.abc import Collection

    from ...._core.clock import Clock
    from ...._core.source import Source, SourceCapabilities, SourceClaim

ROUNDS = (0, 1, 2, 3, 5, 8, 21, 55)
"""Rounds of the loop before a fetch is cancelled."""
MAP = "a1~0AZ^}{|"
"""A text with the characters of an offset map."""
TOO_LARGE = "x" * 100_000
"""Metadata that is too large for almost every broker."""


def contradictions(declared: SourceCapabilities, source: Source) -> list[str]:
    """Describe each difference between the declaration and the implementation of a source."""
    transactions = (
        "positions"
        if isinstance(source, TransactionalSource)
        else "records"
        if isinstance(source, SettlesInTransaction)
        else None
    )
    implemented = {
        "lag == 'counts'": (declared.lag == "counts", isinstance(source, CountsLag)),
        "extends": (declared.extends, isinstance(source, ExtendsRecords)),
        "takes_back": (declared.takes_back, isinstance(source, TakesBack)),
        f"transactions == {transactions!r}": (declared.transactions == transactions, True),
    }
    found = [
        f"{name} is {said} in its capabilities and {is_so} in its implementation"
        for name, (said, is_so) in implemented.items()
        if said is not is_so
    ]
    if declared.cooperative and declared.shares != "partitions":
        found.append("cooperative is True in its capabilities, but it shares no partitions")
    return found


def without_times(declared: SourceCapabilities) -> SourceCapabilities:
    """Return the declaration of the class: times may depend on the arguments of a source."""
    return replace(declared, keep_alive_every=None, revoke_within=None, extend_every=None)


class DeclarationTests(SourceUnderTest):
    """Tests of the declared capabilities."""

    async def test_the_declaration_is_what_the_source_implements(self, clock: Clock) -> None:
        """O-T23: the suite relies on the declaration."""
        async with self.in_time(clock):
            source = self.source(await self.new_topic(1))
            declared = source.capabilities
            assert without_times(declared) == without_times(self.capabilities), (
                f"the source's capabilities differ from those of the suite: {declared}"
            )
            assert contradictions(declared, source) == []

    async def test_the_lag_is_told_as_declared(self, clock: Clock) -> None:
        """It is exact by the end of each partition, or as a count of deliverable records."""
        lag = self.capabilities.lag
        async with self.in_time(clock):
            topic = await self.filled([7, 3])
            async with self.reading(topic, 2) as reader:
                claims = {claim.partition.partition: claim for claim in reader.host.open}
                await reader.read(reader.host.open, 10)
                if lag == "ends":
                    ends = await reader.source.ends(reader.host.open)
                    assert ends == {claims[0]: 7, claims[1]: 3}
                elif lag == "counts":
                    await reader.commit({claims[1]: Position(2)})
                    assert isinstance(reader.source, CountsLag)
                    unread = await reader.source.lag({claims[0]: 0, claims[1]: 2})
                    assert {claim: each.messages for claim, each in unread.items()} == {
                        claims[0]: 7,
                        claims[1]: 1,
                    }


class DeliveryTests(SourceUnderTest):
    """Tests of the records that a source delivers."""

    async def test_records_are_delivered_in_order_and_once(self, clock: Clock) -> None:
        """Each has its key and value, and no fetch exceeds the requested number."""
        async with self.in_time(clock):
            topic = await self.filled([30, 20])
            async with self.reading(topic, 2) as reader:
                claims = reader.host.open
                await reader.read(claims, 50, most=7)
                for claim in claims:
                    count = 30 if claim.partition.partition == 0 else 20
                    records = reader.records(claim)
                    assert [record.value for record in records] == [b"%d" % n for n in range(count)]
                    assert [record.key for record in records[:6]] == [
                        b"k%d" % (n % 5) for n in range(6)
                    ]
                    assert all(list(record.headers) == [] for record in records)
                    assert all(record.timestamp >= 0 for record in records)

    async def test_only_the_named_claims_are_delivered(self, clock: Clock) -> None:
        """The other claims lose nothing meanwhile."""
        async with self.in_time(clock):
            topic = await self.filled([10, 10])
            async with self.reading(topic, 2) as reader:
                for claim in reader.host.open:
                    await reader.read([claim], 10, most=3)
                    assert reader.offsets(claim) == list(range(10))

    async def test_a_waiting_fetch_gets_what_is_appended(self, clock: Clock) -> None:
        """The records may belong to any of the claims that it names."""
        self.needs("partitions")
        async with self.in_time(clock):
            topic = await self.new_topic(2)
            async with self.reading(topic, 2) as reader:
                claims = reader.host.open
                for partition in (1, 0, 1):
                    read = asyncio.get_running_loop().create_task(
                        reader.read(claims, 1 + sum(len(reader.records(c)) for c in claims))
                    )
                    await clock.sleep(0)
                    await self.add(topic, partition, 1)
                    await read
                assert sorted(len(reader.records(claim)) for claim in claims) == [1, 2]

    async def test_a_cancelled_fetch_has_delivered_nothing(self, clock: Clock) -> None:
        """Whenever it is cancelled, the next fetch continues after the last returned records."""
        self.needs("partitions")
        async with self.in_time(clock):
            topic = await self.new_topic(1)
            async with self.reading(topic, 1) as reader:
                claims = reader.host.open
                for rounds in ROUNDS:
                    fetch = asyncio.get_running_loop().create_task(reader.fetch(claims, 2))
                    await self.add(topic, 0, 3)
                    for _ in range(rounds):
                        await clock.sleep(0)
                    fetch.cancel()
                    with suppress(asyncio.CancelledError):
                        await fetch
                await reader.read(claims, 3 * len(ROUNDS))
                assert reader.offsets(claims[0]) == list(range(3 * len(ROUNDS)))

    async def test_a_source_lives_without_fetches(self, clock: Clock) -> None:
        """`keep_alive` and `extend`, if the source has them, do not affect later fetches."""
        async with self.in_time(clock):
            topic = await self.filled([10])
            async with self.reading(topic, 1) as reader:
                claims = reader.host.open
                await reader.read(claims, 4, most=2)
                for _ in range(3):
                    if isinstance(reader.source, KeepsAlive):
                        await reader.source.keep_alive()
                    if isinstance(reader.source, ExtendsRecords):
                        reader.source.extend(reader.records(claims[0]))
                await reader.read(claims, 10)
                assert reader.offsets(claims[0]) == list(range(10))

    async def test_the_ends_are_those_of_the_partitions(self, clock: Clock) -> None:
        """Only known ends are compared; a claim without a known end may be missing."""
        async with self.in_time(clock):
            topic = await self.filled([7, 3])
            async with self.reading(topic, 2) as reader:
                claims = reader.host.open
                await reader.read(claims, 10)
                ends = await reader.source.ends(claims)
                assert all(any(claim is each for each in claims) for claim in ends)
                assert {claim.partition.partition: end for claim, end in ends.items()}.items() <= {
                    0: 7,
                    1: 3,
                }.items()

    async def test_holes_are_told(self, clock: Clock) -> None:
        """consumer/C:C2: at the beginning, between records, and at the end."""
        self.needs("holes")
        async with self.in_time(clock):
            topic = await self.new_topic(1)
            for _ in range(2):
                await self.leave_hole(topic, 0)
                await self.add(topic, 0, 2)
            await self.leave_hole(topic, 0)
            async with self.reading(topic, 1) as reader:
                (claim,) = reader.host.open
                await reader.read([claim], 4)
                end = (await reader.source.ends([claim]))[claim]
                assert end > reader.offsets(claim)[-1] + 1
                await reader.read_up_to(claim, end)
                assert len(reader.records(claim)) == 4

    async def test_a_record_that_cannot_be_decoded_is_delivered_in_its_place(
        self, clock: Clock
    ) -> None:
        """O-T18: with its coordinates, and its key if it is known; the others are intact."""
        self.needs("undecodable")
        async with self.in_time(clock):
            topic = await self.filled([4, 4])
            for _ in range(2):
                await self.append_undecodable(topic, 0, b"k1")
                await self.add(topic, 0, 4)
            async with self.reading(topic, 2) as reader:
                await reader.read(reader.host.open, 14 + 4, most=3)
                claims = {claim.partition.partition: claim for claim in reader.host.open}
                assert reader.offsets(claims[0]) == list(range(14))
                assert reader.offsets(claims[1]) == list(range(4))
                for claim in claims.values():
                    for record in reader.records(claim):
                        is_bad = claim is claims[0] and record.offset in {4, 9}
                        assert isinstance(record, UndecodableRecord) == is_bad, record
                        if not isinstance(record, UndecodableRecord):
                            assert record.key == b"k%d" % (record.offset % 5)
                        elif record.has_key:
                            assert record.key == b"k1"


class CommitTests(SourceUnderTest):
    """Tests of the positions that a source stores."""

    async def test_a_commit_is_stored_with_its_map(self, clock: Clock) -> None:
        """The next assignment begins with the record at the position."""
        async with self.in_time(clock):
            topic = await self.filled([10, 10])
            async with self.reading(topic, 2) as reader:
                wanted = {
                    claim: Position(3 + claim.partition.partition, MAP)
                    for claim in reader.host.open
                }
                assert {*await reader.commit(wanted)} == {*wanted}
                stored = await self.stored(topic)
                assert stored == {
                    claim.partition: self.kept(position) for claim, position in wanted.items()
                }
            async with self.reading(topic, 2) as reader:
                for claim in reader.host.open:
                    start = 3 + claim.partition.partition
                    assert claim.start == self.kept(Position(start, MAP))
                    await reader.read([claim], 10 - start)
                    assert reader.offsets(claim) == list(range(start, 10))

    async def test_a_position_without_a_map_clears_the_last_one(self, clock: Clock) -> None:
        """The newest position replaces the stored one as a whole."""
        async with self.in_time(clock):
            topic = await self.filled([10])
            async with self.reading(topic, 1) as reader:
                (claim,) = reader.host.open
                for position in (Position(2, MAP), Position(5)):
                    assert list(await reader.commit({claim: position})) == [claim]
                    assert await self.position(topic) == self.kept(position)

    async def test_the_answer_of_a_commit_is_true(self, clock: Clock) -> None:
        """consumer/C:C6: positions reported as stored are stored, even if the commit fails."""
        self.needs("metadata")
        async with self.in_time(clock):
            topic = await self.filled([10, 10])
            async with self.reading(topic, 2) as reader:
                wanted = dict.fromkeys(reader.host.open, Position(4))
                refused = reader.host.open[0]
                wanted[refused] = Position(4, TOO_LARGE)
                told: Collection[SourceClaim] = ()
                with suppress(Exception):  # a failed commit may raise
                    told = await reader.commit(wanted)
                stored = await self.stored(topic)
                for claim in wanted.keys() & {*told}:
                    assert stored.get(claim.partition) == wanted[claim], (
                        f"{claim!r} was reported as stored"
                    )
                newer = dict.fromkeys(wanted, Position(5))
                assert {*await reader.commit(newer)} == {*newer}

    async def test_a_cancelled_commit_leaves_the_source_usable(self, clock: Clock) -> None:
        """The cancelled commit may be stored; a later one is stored, once the server has ended it."""
        async with self.in_time(clock):
            topic = await self.filled([100])
            async with self.reading(topic, 1) as reader:
                (claim,) = reader.host.open
                for at, rounds in enumerate(ROUNDS):
                    await reader.settle({claim: Position(2 * at + 1)})
                    commit = asyncio.get_running_loop().create_task(
                        reader.source.commit({claim: Position(2 * at + 1)})
                    )
                    for _ in range(rounds):
                        await clock.sleep(0)
                    commit.cancel()
                    with suppress(asyncio.CancelledError):
                        await commit
                    while not await reader.commit({claim: Position(2 * at + 2)}):
                        await clock.sleep(0.01)  # the server still executes the cancelled one
                    assert await self.position(topic) == Position(2 * at + 2)

    async def test_closing_ends_the_claims_and_commits_nothing(self, clock: Clock) -> None:
        """Records that the host has not committed are delivered again."""
        async with self.in_time(clock):
            topic = await self.filled([5])
            async with self.reading(topic, 1) as reader:
                await reader.read(reader.host.open, 5)
            assert reader.host.open == []
            assert await self.stored(topic) == {}
            async with self.reading(topic, 1) as reader:
                await reader.read(reader.host.open, 5)

    async def test_an_error_within_closes_the_source(self, clock: Clock) -> None:
        """The error propagates, and the claims have ended."""
        async with self.in_time(clock):
            topic = await self.filled([5])
            host, source = RecordingHost(), self.source(topic)
            with pytest.raises(ZeroDivisionError):
                async with source.open(host):
                    await self.claimed(source, host, 1)
                    raise ZeroDivisionError
            assert host.open == []
