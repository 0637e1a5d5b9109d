"""A random program on a log in memory: members that join, leave and crash, partitions that move and
are lost, commits that fail, and handlers that fail and wait.

White box: the error of a crashed source in memory.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any

from tests.conformance.source_consumers import Journal, WatchedSource

from sluicegate import Backoff, Consumer, Nak, RetryPolicy, TransientError
from sluicegate.consumer import Commits, InFlight, MemoryLog, MemorySource, Position, TopicPartition
from sluicegate.consumer.memory.source import Crashed

if TYPE_CHECKING:
    from sluicegate import Message
    from sluicegate.consumer import DrainReport
    from sluicegate.testing import FakeClock

PARTITIONS = [TopicPartition("t", number) for number in range(3)]
FOR_EVER = RetryPolicy(
    attempts=1_000_000,
    unlisted_attempts=1_000_000,
    backoff=Backoff(base=0.001, longest=0.01, jitter="none"),
)


@dataclass(eq=False)
class Member:
    """A running consumer. Its journal sees overlaps within its process only."""

    source: MemorySource
    watched: WatchedSource
    consumer: Consumer
    run: asyncio.Task[DrainReport]
    journal: Journal


class RandomMembers:
    """One group, its log, and the messages that its members have handled."""

    def __init__(self, seed: int, clock: FakeClock) -> None:
        self.random = Random(seed)
        self.clock = clock
        self.log = MemoryLog(partitions=PARTITIONS)
        self.settled = Journal(clock)
        self.alive: list[Member] = []
        self.violations: list[str] = []
        self.moves: set[asyncio.Task[None]] = set()
        self.in_batches = self.random.random() < 0.4

    # -- the members -------------------------------------------------------------------------------

    async def join(self) -> None:
        """Add a member with its own settings; the first one claims every partition."""
        pick = self.random.choice
        partitions: list[TopicPartition] | None = [] if self.alive else None
        source = MemorySource(
            self.log,
            partitions=partitions,
            chunk=self.random.randint(1, 20),
            commit_seconds=pick([0.0, 0.0, 0.005]),
        )
        watched = WatchedSource(source, self.settled.news, self.settled.is_settled)
        consumer = Consumer(
            watched,
            clock=self.clock,
            commits=Commits(every=0.01, after=pick([None, 3, 10])),
            drain=pick([0.0, 0.005, 0.1, 1.0]),
            concurrency=self.random.randint(1, 8),
            in_flight=InFlight(
                pick([1, 3, 10, 100]),
                bytes=pick([30, 1000]),
                per_key=pick([None, 2]),
                fetch_max=self.random.randint(1, 20),
            ),
            retry=FOR_EVER,
        )
        await consumer.__aenter__()
        journal = Journal(self.clock)
        run = self._handling(consumer, journal)
        self.alive.append(Member(source, watched, consumer, run, journal))

    def _handling(self, consumer: Consumer, journal: Journal) -> asyncio.Task[DrainReport]:
        async def handle(messages: list[Message]) -> list[Nak | None]:
            with journal.handling(*messages):
                await self._work()
            results = [Nak(0.01) if self.random.random() < 0.1 else None for _ in messages]
            failed: set[tuple[int, object]] = set()
            for message, result in zip(messages, results, strict=True):
                key = message.partition, message.key
                if result is not None:
                    failed.add(key)
                elif key not in failed and not message.claim.is_closed:
                    self.settled.done(message)
            return results

        async def handle_one(message: Message) -> Nak | None:
            return (await handle([message]))[0]

        create, size = asyncio.get_running_loop().create_task, self.random.randint(1, 6)
        if self.in_batches:
            return create(_run(consumer.run_batch(handle, size=size, max_wait=0.003)))
        return create(_run(consumer.run(handle_one)))

    async def _work(self) -> None:
        chance = self.random.random()
        if chance < 0.6:
            await self.clock.sleep(self.random.choice([0.0, 0.001, 0.02]))
        elif chance < 0.65:
            raise TransientError("busy")

    async def leave(self, member: Member, *, crashes: bool) -> None:
        """End a member; its partitions are assigned to another one."""
        await self.settle_moves()
        if len(self.alive) == 1:
            await self.join()
        self.alive.remove(member)
        if crashes:
            member.source.crash()
            for _ in range(2):
                member.run.cancel()
                await self.clock.sleep(0)
        else:
            member.consumer.stop()
        with suppress(Crashed, asyncio.CancelledError):
            await member.run
        await member.consumer.__aexit__(None, None, None)
        self.violations += member.watched.violations + member.journal.violations
        self.share()

    def share(self) -> None:
        """Assign every free partition to a member."""
        for partition in self.log.group.free(PARTITIONS):
            self.random.choice(self.alive).source.assign([partition])

    # -- the program -------------------------------------------------------------------------------

    def produce(self, count: int) -> None:
        """Append records, and leave holes."""
        for _ in range(count):
            partition = self.random.choice(PARTITIONS)
            if self.random.random() < 0.1:
                self.log.skip(partition, self.random.randint(1, 3))
            value, key = b"x" * self.random.randint(0, 20), b"k%d" % self.random.randint(0, 4)
            self.log.produce("t", value, key=key, partition=partition.partition)

    async def step(self) -> None:
        """Do one random step."""
        member = self.random.choice(self.alive)
        source, claimed = member.source, member.source.claimed
        some = [partition for partition in claimed if self.random.random() < 0.5]
        things: list[Any] = [
            lambda: self.produce(self.random.randint(1, 10)),
            lambda: self._lose(source, some),
            lambda: self._move(source, some),
            lambda: self._move(source, some),
            lambda: self.join() if len(self.alive) < 3 else None,
            lambda: self.leave(member, crashes=False),
            lambda: self.leave(member, crashes=True),
            lambda: source.script_commit(
                TransientError("lost"),
                stored=self.random.random() < 0.5,
                seconds=self.random.random() / 50,
            ),
            lambda: source.redeliver(self.random.choice(PARTITIONS), self.random.randint(0, 10)),
            lambda: self._pause(member, some),
            lambda: self._commit(member),
        ]
        doing = self.random.choice(things)()
        if asyncio.iscoroutine(doing):
            await doing

    def _lose(self, source: MemorySource, partitions: list[TopicPartition]) -> None:
        source.lose(partitions)
        self.share()

    async def _move(self, source: MemorySource, partitions: list[TopicPartition]) -> None:
        taker, within = self.random.choice(self.alive), self.random.choice([0.001, 0.01, 10.0])

        async def move() -> None:
            with suppress(TransientError):
                await source.give(partitions, to=taker.source, within=within)

        task = asyncio.get_running_loop().create_task(move())
        self.moves.add(task)
        if self.random.random() < 0.5:
            await task

    async def _pause(self, member: Member, partitions: list[TopicPartition]) -> None:
        if partitions:
            member.consumer.pause(*partitions)
            await self.clock.sleep(0.01)
            member.consumer.resume(*partitions)

    async def _commit(self, member: Member) -> None:
        with suppress(TransientError):
            await member.consumer.commit()

    async def settle_moves(self) -> None:
        """Wait until every move has ended."""
        await asyncio.gather(*self.moves)
        self.moves.clear()

    async def run(self, steps: int) -> None:
        """Run the program, then without faults until everything is settled."""
        self.produce(30)
        await self.join()
        for _ in range(steps):
            await self.clock.sleep(self.random.random() / 50)
            await self.step()
        await self.settle_moves()
        self.share()
        await self.clock.wait_for(self._is_quiet, timeout=60.0)
        for member in list(self.alive):
            member.consumer.stop()
            assert (await member.run).unfinished == ()
            await member.consumer.__aexit__(None, None, None)
            self.violations += member.watched.violations + member.journal.violations

    def _is_quiet(self) -> bool:
        return all(
            self.log.positions.get(partition, Position(0)) == Position(self.log.end(partition))
            for partition in PARTITIONS
        )


async def _run(run: Any) -> DrainReport:
    report: DrainReport = await run
    return report
