"""The source under test: its hooks, and helpers of the suite."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, ClassVar

import pytest

from ...._core import checks
from ...._core.source import Position, TopicPartition
from .host import RecordingHost
from .reader import ClaimReader

if TYPE_CHECKING:
    import asyncio
    from collections.abc import AsyncIterator, Collection, Mapping, Sequence

    from ...._core.clock import Clock, LoopClock
    from ...._core.source import Source, SourceCapabilities

ABILITIES = frozenset(
    {"metadata", "members", "cooperative", "loss", "holes", "partitions", "undecodable"}
)


def abilities_of(declared: SourceCapabilities | None) -> dict[str, bool]:
    """Return the declared abilities, and for each whether the source has it."""
    if declared is None:
        return {}
    return {
        "metadata": declared.metadata,
        "members": declared.shares == "partitions",
        "cooperative": declared.cooperative,
        "partitions": declared.shares != "keys",
    }


class SourceUnderTest(ABC):
    """The hooks for a subclass to implement, and helpers for the tests."""

    capabilities: ClassVar[SourceCapabilities | None] = None
    """The declaration of the source; `None` if it has none."""
    lacks: ClassVar[Collection[str]] = ()
    """Missing abilities that the declaration does not cover; tests that need them are skipped.

    `metadata`: store text with a position. `members`: several sources of one group. `cooperative`:
    keep the other partitions in a rebalance. `loss`: lose partitions without a revoke, on demand.
    `holes`: offsets without a record, on demand. `partitions`: hold whole partitions, also without
    records, and store their positions periodically; without this ability, a claim is a lease of
    existing records. `undecodable`: records that the source cannot decode, on demand.
    """
    patience: ClassVar[float] = 60.0
    """Maximum duration of a test, in seconds of its clock."""

    @pytest.fixture
    def clock(self, real_clock: LoopClock) -> Clock:
        """The clock of the tests: real time. Override it with `fake_clock` for virtual time."""
        return real_clock

    # -- hooks -------------------------------------------------------------------------------------

    @abstractmethod
    async def new_topic(self, partitions: int) -> str:
        """Make a topic with this number of empty partitions; return its name."""

    @abstractmethod
    def source(self, topic: str) -> Source:
        """Return a new source of a topic, not yet open. All sources of a topic are one group."""

    @abstractmethod
    async def append(
        self, topic: str, partition: int, entries: Sequence[tuple[bytes | None, bytes]]
    ) -> None:
        """Append records with these keys and values; they are readable when this returns."""

    @abstractmethod
    async def stored(self, topic: str) -> Mapping[TopicPartition, Position]:
        """Return the stored positions of the group, without partitions that have none."""

    async def rebalance(self, giver: Source, taker: Source) -> None:
        """Move at least one partition from one open source to another, with a revoke.

        By default it does nothing: if the group balances itself, opening the taker is enough.
        """
        del giver, taker

    async def lose(self, source: Source) -> None:
        """Take all partitions from an open source without a revoke, and let it claim them again.

        May return before the source notices the loss.
        """
        raise NotImplementedError("implement this hook, or set lacks = {'loss'}")

    async def leave_hole(self, topic: str, partition: int) -> None:
        """Use up an offset without a record."""
        raise NotImplementedError("implement this hook, or set lacks = {'holes'}")

    async def append_undecodable(self, topic: str, partition: int, key: bytes) -> None:
        """Append a record with this key that the source cannot decode, such as one with a header
        that is not text.
        """
        raise NotImplementedError("implement this hook, or set lacks = {'undecodable'}")

    # -- helpers -----------------------------------------------------------------------------------

    def needs(self, *abilities: str) -> None:
        """Skip the test if the source lacks one of these abilities."""
        lacking = self.lacking()
        missing = [ability for ability in abilities if ability in lacking]
        if missing:
            pytest.skip(f"the source lacks {', '.join(missing)}")

    def lacking(self) -> frozenset[str]:
        """Return the abilities that the source lacks, by its declaration or by `lacks`.

        Raises `ConfigError` for an unknown ability in `lacks`, and for one that the source
        declares.
        """
        unknown = {*self.lacks} - ABILITIES
        if unknown:
            raise checks.bad("lacks", unknown, f"must be among {', '.join(sorted(ABILITIES))}")
        told = abilities_of(self.capabilities)
        declared = {ability for ability in self.lacks if told.get(ability)}
        if declared:
            raise checks.bad("lacks", declared, "contradicts the source's declaration")
        return frozenset(self.lacks).union(each for each, has in told.items() if not has)

    def in_time(self, clock: Clock) -> asyncio.Timeout:
        """Fail a test that takes longer than the suite's patience."""
        return clock.timeout_at(clock.now() + self.patience)

    async def filled(self, counts: Sequence[int], keys: int = 5) -> str:
        """Make a topic with a partition for each count, containing that number of records."""
        topic = await self.new_topic(len(counts))
        for partition, count in enumerate(counts):
            await self.add(topic, partition, count, keys)
        return topic

    async def add(self, topic: str, partition: int, count: int, keys: int = 5) -> None:
        """Append records with the keys `k0` to `k4` in turn, and their index as the value."""
        entries = [(b"k%d" % (at % keys), b"%d" % at) for at in range(count)]
        await self.append(topic, partition, entries)

    @asynccontextmanager
    async def reading(self, topic: str, claims: int) -> AsyncIterator[ClaimReader]:
        """Open a source without a consumer, and wait until it has claimed this number of
        partitions.
        """
        host, source = RecordingHost(), self.source(topic)
        async with source.open(host):
            await self.claimed(source, host, claims)
            yield ClaimReader(source, host)

    async def claimed(self, source: Source, host: RecordingHost, claims: int) -> None:
        """Suspend until an open source has claimed this number of partitions."""
        while "partitions" in self.lacking() and len(host.open) < claims:
            assert await source.fetch((), 100) == []
        await host.wait_for_claims(claims)

    async def position(self, topic: str, partition: int = 0) -> Position | None:
        """Return the stored position of a partition, or `None`."""
        return (await self.stored(topic)).get(TopicPartition(topic, partition))

    @property
    def repeats(self) -> bool:
        """Whether a restart repeats settled records that follow an unfinished one."""
        declared = self.capabilities
        return "metadata" in self.lacking() and not (declared and declared.settles_each)

    def kept(self, position: Position) -> Position:
        """Return a position as the source stores it."""
        return Position(position.offset) if "metadata" in self.lacking() else position
