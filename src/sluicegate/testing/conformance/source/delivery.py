"""Tests of fetching: order, completeness, and cancelled fetches."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

from ...._core.source import ExtendsRecords, KeepsAlive, UndecodableRecord
from .subject import SourceUnderTest

if TYPE_CHECKING:
    from ...._core.clock import Clock

ROUNDS = (0, 1, 2, 3, 5, 8, 21, 55)
"""Rounds of the loop before a fetch is cancelled."""


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
        """`keep_alive` and `extend`, if it has them, do not disturb fetches."""
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
