"""Locks controlled by a test, and the slots of processes.

White box: the lock of a slot, and the slot of a stream.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from tests.postgres.access_help import access_from

from sluicegate._core.subscriptions import slot_lock
from sluicegate.consumer import MemorySubscriptions, Position, TopicPartition
from sluicegate.postgres import PostgresStreamSource, PostgresSubscriptions
from sluicegate.postgres.streams.selection import slot_of

if TYPE_CHECKING:
    from collections.abc import Collection

    from tests.postgres.streams.log_help import Log

    from sluicegate.consumer import SourceClaim, SubscriptionLocks
    from sluicegate.testing.conformance.source.subject import RecordingHost

Subscriptions = MemorySubscriptions | PostgresSubscriptions
NAME = "s"
"""The subscription of every source in these tests."""


class PlainLocks:
    """Locks that do not count the members; a test can delay a call of `lock`."""

    def __init__(self, inner: SubscriptionLocks, *, keep_every: float | None = None) -> None:
        self._inner = inner
        self._keep_every = keep_every
        self.asked = asyncio.Event()
        """Set by a call of `lock`."""
        self.may_go = asyncio.Event()
        """Calls of `lock` wait for this event."""
        self.may_go.set()

    @property
    def keep_every(self) -> float | None:
        return self._keep_every or self._inner.keep_every

    async def lock(self, names: Collection[str]) -> Collection[str]:
        self.asked.set()
        await self.may_go.wait()
        return await self._inner.lock(names)

    async def keep(self, names: Collection[str]) -> Collection[str]:
        return await self._inner.keep(names)

    async def unlock(self, names: Collection[str]) -> None:
        await self._inner.unlock(names)


def plain(
    log: Log,
    subscriptions: Subscriptions,
    *,
    locks: SubscriptionLocks | None = None,
    **options: Any,
) -> PostgresStreamSource:
    """A source whose locks do not count the members."""
    given: dict[str, Any] = {"poll": 0.005, "hold": 0.0, "close_timeout": 20.0, **options}
    return PostgresStreamSource(
        access_from(None if "pool" in given else log.dsn, given),
        subscription=NAME,
        schema=log.schema,
        state=subscriptions,
        locks=locks or PlainLocks(subscriptions),
        **given,
    )


def lock_of(stream: str) -> str:
    """The lock of the slot of a stream."""
    return slot_lock(NAME, slot_of(stream))


def partition_of(log: Log, stream: str) -> TopicPartition:
    """The slot of a stream, as the partition of its records."""
    return TopicPartition(log.schema, slot_of(stream))


def visits(host: RecordingHost) -> list[int]:
    """The slots that were claimed, in order."""
    return [claim.partition.partition for claim in host.claims]


async def read_through(source: PostgresStreamSource, host: RecordingHost, most: int) -> list[int]:
    """Fetch once, and store the positions behind the records; return the positions of the
    records.
    """
    found = await source.fetch(host.open, most)
    assert found is not None
    moves: dict[SourceClaim, Position] = {each.claim: Position(each.next_offset) for each in found}
    await source.commit(moves)
    return [record.offset for each in found for record in each.records]
