"""The work for a fetch, a commit and a revoke does not multiply with the number of partitions.

White box: counts the lines that are run, and the comparisons of partitions.
"""

from __future__ import annotations

import asyncio
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from sluicegate import Consumer
from sluicegate.consumer import Commits, InFlight, MemoryLog, MemorySource, TopicPartition

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
    from types import FrameType

    from sluicegate import Message
    from sluicegate.testing import FakeClock

FEW, MANY = 50, 400
RUNNING = 20


class Name(str):
    """A topic's name that counts its comparisons."""

    __slots__ = ()
    compared = 0

    def __eq__(self, other: object) -> bool:
        Name.compared += 1
        return str.__eq__(self, other)

    __hash__ = str.__hash__


class Lines:
    """The number of lines of Python run inside a block."""

    count = 0

    @contextmanager
    def counted(self) -> Iterator[None]:
        def look(_frame: FrameType, event: str, _: object) -> Any:
            self.count += event == "line"
            return look

        before = sys.gettrace()
        sys.settrace(look)
        try:
            yield
        finally:
            sys.settrace(before)


class Member:
    """A running consumer of a number of partitions."""

    def __init__(self, clock: FakeClock, partitions: int) -> None:
        self.clock = clock
        self.partitions = [TopicPartition(Name("t"), number) for number in range(partitions)]
        self.log = MemoryLog(partitions=self.partitions)
        self.source = MemorySource(self.log, clock=clock)
        self.waiting: list[asyncio.Future[None]] = []
        self.consumer = Consumer(
            self.source,
            clock=clock,
            in_flight=InFlight(1_000),
            commits=Commits(every=3600.0, after=10**6),
        )

    async def handle(self, message: Message) -> None:
        if message.value == b"wait":
            self.waiting.append(waiter := asyncio.get_running_loop().create_future())
            await waiter


async def running(
    clock: FakeClock, partitions: int, value: bytes, records: int
) -> AsyncIterator[Member]:
    member = Member(clock, partitions)
    async with member.consumer, asyncio.TaskGroup() as tasks:
        run = tasks.create_task(member.consumer.run(member.handle))
        await clock.advance(1.0)
        for number in range(records):
            member.log.produce("t", value, key=number, partition=number % partitions)
        await clock.advance(1.0)
        yield member
        member.consumer.stop()
        await run


async def fetch(member: Member) -> int:
    claims, lines = member.consumer._open().claims, Lines()
    claims.wanted()
    with lines.counted():
        assert len(claims.wanted()) == len(member.partitions)
    return lines.count


async def commit(member: Member) -> int:
    Name.compared = 0
    await member.consumer._open().committer.commit()
    assert len(member.log.commits) == len(member.partitions)
    return Name.compared // len(member.partitions)


async def assign_some_more(member: Member) -> int:
    more = [TopicPartition(Name("u"), each.partition) for each in member.partitions]
    Name.compared = 0
    member.source.assign(more)
    return Name.compared // len(member.partitions)


@pytest.mark.parametrize("work", [fetch, commit, assign_some_more])
async def test_it_costs_each_partition_as_much_however_many_there_are(
    fake_clock: FakeClock, work: Callable[[Member], Awaitable[int]]
) -> None:
    """A fetch costs no line of Python for each of its partitions."""
    costs: list[int] = []
    for partitions in (FEW, MANY):
        async for member in running(fake_clock, partitions, b"", partitions):
            costs.append(await work(member))
    few, many = costs
    assert many <= few + 2, (few, many)


async def test_claims_are_fetched_from_in_turn_and_changes_are_seen(fake_clock: FakeClock) -> None:
    async for member in running(fake_clock, 4, b"", 0):
        claims = member.consumer._open().claims
        firsts = [claims.wanted()[0] for _ in range(8)]
        assert firsts[:4] == firsts[4:]
        assert len(set(firsts[:4])) == 4
        paused = member.partitions[1]
        member.consumer.pause(paused)
        assert paused not in {claim.partition for claim in claims.wanted()}
        member.consumer.resume(paused)
        assert paused in {claim.partition for claim in claims.wanted()}
        member.source.lose([paused])
        assert paused not in {claim.partition for claim in claims.wanted()}


class Collected(list[object]):
    """Claims that count how often they are searched one after another."""

    searches = 0

    def __contains__(self, item: object) -> bool:
        Collected.searches += 1
        return super().__contains__(item)


async def test_a_drain_does_not_search_the_claims_for_each_running_message(
    fake_clock: FakeClock,
) -> None:
    async for member in running(fake_clock, FEW, b"wait", RUNNING):
        engine = member.consumer._open()
        claims = Collected(engine.claims)
        Collected.searches = 0
        waiting = asyncio.create_task(
            engine._drainer.wait(claims, fake_clock.now() + 60)  # type: ignore[arg-type]
        )
        for waiter in list(member.waiting):
            waiter.set_result(None)
            await asyncio.sleep(0)
        await waiting
        assert Collected.searches == 0
