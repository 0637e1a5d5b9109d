"""A hundred members of a group with 5,000 partitions join, leave and crash, in virtual time.

White box: the division of partitions among the members of a JetStream group, and the error of a
crashed source in memory. `-s` shows the figures.
"""

from __future__ import annotations

import asyncio
import logging
import resource
import time
from collections import defaultdict
from contextlib import suppress
from random import Random
from typing import TYPE_CHECKING

import pytest

from sluicegate import Consumer
from sluicegate.consumer import Commits, MemoryLog, MemorySource, Position, TopicPartition
from sluicegate.consumer.memory.source import Crashed
from sluicegate.nats.jetstream.group import divide
from sluicegate.testing import FakeClock

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from sluicegate import Message
    from sluicegate.consumer import DrainReport, SourceClaim

KEYS = 4
"""Number of keys per partition."""
SLOW = 0.05
"""Share of the handlers that hold up the position of their partition for a few seconds."""


class CountingSource(MemorySource):
    """A source that counts its commits."""

    commits = 0

    async def commit(self, positions: Mapping[SourceClaim, Position]) -> Collection[SourceClaim]:
        """Count and store."""
        self.commits += 1
        return await super().commit(positions)


class Member:
    """A running consumer."""

    def __init__(self, hall: Hall, name: str) -> None:
        self.name = name
        self.source = CountingSource(hall.log, partitions=(), clock=hall.clock)
        self.consumer = Consumer(
            self.source, name=name, clock=hall.clock, drain=0.5, commits=Commits(every=1.0)
        )
        self._handle = hall.handle

    async def start(self) -> None:
        """Begin without partitions."""
        await self.consumer.__aenter__()
        self.run = asyncio.ensure_future(self._run())
        await self.consumer.wait_ready()

    async def _run(self) -> DrainReport:
        return await self.consumer.run(self._handle)

    async def end(self, *, crashes: bool) -> None:
        """Leave the group, with or without a last commit."""
        if crashes:
            self.source.crash()
            self.run.cancel()
            await asyncio.sleep(0)
            self.run.cancel()  # no drain
        else:
            self.consumer.stop()
        with suppress(Crashed, asyncio.CancelledError):
            await self.run
        await self.consumer.__aexit__(None, None, None)


class Hall:
    """One group, its log, and the records that its members have handled."""

    def __init__(self, seed: int, clock: FakeClock, partitions: int) -> None:
        self.random = Random(seed)
        self.clock = clock
        self.partitions = [TopicPartition("t", number) for number in range(partitions)]
        self.log = MemoryLog(partitions=self.partitions)
        self.members: dict[str, Member] = {}
        self.owners: list[str] = []
        self.ended: list[Member] = []
        self.running: set[tuple[int, object]] = set()
        self.handled: defaultdict[tuple[int, object], list[int]] = defaultdict(list)
        self.moved: list[int] = []
        self.deciding: list[float] = []
        """Processor seconds of each division."""
        self.moving: list[float] = []
        """Processor seconds of each rebalance, apart from the division."""
        self.produced = self.overlaps = 0

    async def handle(self, message: Message) -> None:
        """No member handles another message of the key meanwhile."""
        key = message.partition, message.key
        self.overlaps += key in self.running
        self.running.add(key)
        try:
            if self.random.random() < SLOW:
                await self.clock.sleep(3 * self.random.random())
            self.handled[key].append(message.offset)
        finally:
            self.running.discard(key)

    def produce(self, count: int) -> None:
        """Append records to random partitions."""
        for _ in range(count):
            number = self.random.randrange(len(self.partitions))
            key = b"%d" % self.random.randrange(KEYS)
            self.log.produce("t", None, key=key, partition=number)
        self.produced += count

    async def join(self, count: int = 1) -> None:
        """Add members."""
        for _ in range(count):
            member = Member(self, f"m{len(self.members) + len(self.ended)}")
            self.members[member.name] = member
            await member.start()
        await self.rebalance()

    async def leave(self, *, crashes: bool) -> None:
        """Remove a member."""
        member = self.members.pop(self.random.choice([*self.members]))
        await member.end(crashes=crashes)
        self.ended.append(member)
        await self.rebalance()

    async def rebalance(self) -> None:
        """Move the partitions whose owner changes, and no others."""
        began = time.process_time()
        owners = divide([*self.members], len(self.partitions))
        decided = time.process_time()
        moves: defaultdict[str, list[TopicPartition]] = defaultdict(list)
        for partition, (before, after) in zip(
            self.partitions,
            zip(self.owners or [""] * len(owners), owners, strict=True),
            strict=True,
        ):
            if before != after:
                moves[before].append(partition)
        self.owners = owners
        await asyncio.gather(
            *[
                self.members[name].source.revoke(moved)
                for name, moved in moves.items()
                if name in self.members
            ]
        )
        gained: defaultdict[str, list[TopicPartition]] = defaultdict(list)
        for partition in self.log.group.free(self.partitions):
            gained[owners[partition.partition]].append(partition)
        for name, partitions in gained.items():
            self.members[name].source.assign(partitions)
        self.moved.append(sum(map(len, moves.values())))
        self.deciding.append(decided - began)
        self.moving.append(time.process_time() - decided)

    def is_quiet(self) -> bool:
        """Whether all records are settled and stored."""
        stored = self.log.positions
        return all(
            stored.get(each, Position(0)) == Position(self.log.end(each))
            for each in self.partitions
        )


async def storm(hall: Hall, members: int, events: int, records: int) -> None:
    await hall.join(members)
    began, began_at = time.process_time(), hall.clock.now()
    joins = [
        lambda: hall.join(),
        lambda: hall.leave(crashes=False),
        lambda: hall.leave(crashes=True),
    ]
    for number in range(events):
        for _ in range(4):
            hall.produce(records)
            await hall.clock.sleep(0.5)
        await joins[number % len(joins)]()
    took, seconds = time.process_time() - began, hall.clock.now() - began_at
    await hall.clock.sleep(10.0)
    assert hall.is_quiet()
    everyone = [*hall.ended, *hall.members.values()]
    for member in hall.members.values():
        await member.end(crashes=False)
    commits = sum(member.source.commits for member in everyone)
    maps = [len(position.metadata) for _, position in hall.log.commits if position.metadata]
    print(  # noqa: T201
        f"\n{len(hall.partitions)} partitions, {members} members: {hall.produced} records, "
        f"{sum(map(len, hall.handled.values())) - hall.produced} twice\n"
        f"commits per second: {commits / seconds:.1f}, with {len(hall.log.commits) / commits:.1f} "
        f"positions; {len(maps)} maps of {sum(maps) / max(1, len(maps)):.0f}, at most "
        f"{max(maps, default=0)} characters\n"
        f"partitions moved: {hall.moved}\n"
        f"ms to divide: {[round(1e3 * each) for each in hall.deciding]}, "
        f"to move: {[round(1e3 * each) for each in hall.moving]}\n"
        f"processor: {took:.1f} s for {seconds:.0f} s; "
        f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10} MB"
    )


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("members", "partitions", "events", "records"),
    [(20, 500, 6, 100), pytest.param(100, 5_000, 15, 1_000, marks=pytest.mark.long)],
)
def test_no_key_is_at_two_members_and_no_record_is_lost_or_overtaken(
    members: int, partitions: int, events: int, records: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL, logger="sluicegate.consumer")
    with FakeClock() as clock:
        hall = Hall(1, clock, partitions)
        clock.run(storm(hall, members, events, records))
    expected: defaultdict[tuple[int, object], list[int]] = defaultdict(list)
    for of_partition in hall.log.records.values():
        for record in of_partition:
            expected[record.partition, record.key].append(record.offset)
    assert {key: [*dict.fromkeys(offsets)] for key, offsets in hall.handled.items()} == expected
    assert hall.overlaps == 0
    share = partitions / members
    assert max(hall.moved[1:]) < 3 * share
