"""The usual way to consume in order per key by hand: a task for each message, a lock for each key,
and a semaphore. Without timeouts, retries, limits or stored positions; locks are never removed.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sluicegate.consumer import Settled

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence

    from sluicegate.consumer import Position, Source, SourceClaim, SourceRecord, TopicPartition

    Handler = Callable[[SourceRecord], Awaitable[object]]


@dataclass(frozen=True, eq=False)
class Claim:
    """A claim that is never closed."""

    partition: TopicPartition
    is_closed: bool = False

    def pass_settled(self, offset: int, least: int) -> int:
        return offset

    def take_settled(self) -> Settled:
        return Settled(())


class Host:
    """Reads a source directly: accepts assigned partitions, and settles nothing."""

    room_bytes = 64 << 20

    def __init__(self) -> None:
        self.claims: list[SourceClaim] = []
        self._assigned = asyncio.Event()

    def assigned(self, starts: Mapping[TopicPartition, Position]) -> Sequence[SourceClaim]:
        begun = [Claim(partition) for partition in starts]
        self.claims += begun
        self._assigned.set()
        return begun

    async def wait_assigned(self) -> None:
        """Suspend until partitions are assigned."""
        await self._assigned.wait()

    async def revoked(
        self, claims: Collection[SourceClaim], within: float
    ) -> Mapping[SourceClaim, Position]:
        return {}

    def ended(self, claims: Collection[SourceClaim]) -> None:
        pass

    def cancelled(self, claim: SourceClaim, offsets: Collection[int]) -> None:
        """Do nothing."""

    def reported(self, trouble: str | None) -> None:
        pass


async def consume(source: Source, handler: Handler, *, concurrency: int, most: int) -> None:
    """Handle all records of a source, in order per key."""
    semaphore = asyncio.Semaphore(concurrency)
    locks: defaultdict[object, asyncio.Lock] = defaultdict(asyncio.Lock)
    tasks: set[asyncio.Task[None]] = set()

    async def handle(record: SourceRecord) -> None:
        try:
            async with locks[record.key]:
                await handler(record)
        finally:
            semaphore.release()

    host = Host()
    async with source.open(host):
        while (fetched := await source.fetch(host.claims, most)) is not None:
            for each in fetched:
                for record in each.records:
                    await semaphore.acquire()
                    task = asyncio.create_task(handle(record))
                    tasks.add(task)
                    task.add_done_callback(tasks.discard)
        while tasks:
            await asyncio.wait(tasks)


async def consume_alone(source: Source, handler: Handler, *, most: int) -> None:
    """Handle all records of a source one after another."""
    host = Host()
    async with source.open(host):
        while (fetched := await source.fetch(host.claims, most)) is not None:
            for each in fetched:
                for record in each.records:
                    await handler(record)
