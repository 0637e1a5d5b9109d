"""The source under test: its hooks, and helpers of the suite."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, ClassVar

import pytest

from ...._core import checks
from ...._core.source import Position, Settled, SourceCapabilities, TopicPartition

if TYPE_CHECKING:
    from collections.abc import (
        AsyncIterator,
        Awaitable,
        Callable,
        Collection,
        Iterable,
        Mapping,
        Sequence,
    )

    from ...._core.clock import Clock, LoopClock
    from ...._core.source import Fetched, Source, SourceClaim, SourceRecord


ABILITIES = frozenset(
    {"metadata", "members", "cooperative", "loss", "holes", "partitions", "undecodable"}
)


def abilities_of(declared: SourceCapabilities) -> dict[str, bool]:
    """Return the declared abilities, and for each whether the source has it."""
    return {
        "metadata": declared.metadata,
        "members": declared.shares == "partitions",
        "cooperative": declared.cooperative,
        "partitions": declared.shares != "keys",
    }


class SourceUnderTest(ABC):
    """The hooks for a subclass to implement, and helpers for the tests."""

    capabilities: ClassVar[SourceCapabilities] = SourceCapabilities()
    """The declaration of the source's class."""
    lacks: ClassVar[Collection[str]] = ()
    """Missing abilities that the declaration does not cover; tests that need them are skipped.

    `metadata`: store text with a position. `members`: several sources of one group. `cooperative`:
    keep the other partitions in a rebalance. `loss`: lose partitions without a revoke, on demand.
    `holes`: offsets without a record, on demand. `partitions`: hold whole partitions, even without
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
        return "metadata" in self.lacking() and not self.capabilities.settles_each

    def kept(self, position: Position) -> Position:
        """Return a position as the source stores it."""
        return Position(position.offset) if "metadata" in self.lacking() else position


class ClaimReader:
    """The delivered records of each claim, and the offset that they reach."""

    def __init__(self, source: Source, host: RecordingHost) -> None:
        self.source = source
        self.host = host
        self._delivered: dict[SourceClaim, list[SourceRecord]] = {}
        self._reached: dict[SourceClaim, int] = {}

    def records(self, claim: SourceClaim) -> list[SourceRecord]:
        """Return the delivered records of a claim, in order."""
        return self._delivered.get(claim, [])

    def offsets(self, claim: SourceClaim) -> list[int]:
        """Return the offsets of the delivered records of a claim."""
        return [record.offset for record in self.records(claim)]

    def reached(self, claim: HeldClaim) -> int:
        """Return the offset before which, by the source's results, everything has been
        delivered.
        """
        return self._reached.get(claim, claim.start.offset)

    async def read(self, claims: Sequence[HeldClaim], count: int, most: int = 100) -> None:
        """Fetch from these claims until `count` of their records have been delivered in total."""
        while sum(len(self.records(claim)) for claim in claims) < count:
            await self.fetch(claims, most)

    async def read_up_to(self, claim: HeldClaim, offset: int) -> None:
        """Fetch until everything before this offset has been delivered, or reported as a hole."""
        while self.reached(claim) < offset:
            await self.fetch([claim], 100)

    async def settle(self, positions: Mapping[HeldClaim, Position]) -> None:
        """Prepare a commit of these positions: if the source settles each record, read and settle
        the records before them.
        """
        if not self.source.capabilities.settles_each:
            return
        for claim, position in positions.items():
            if not claim.is_closed:
                await self.read_up_to(claim, position.offset)
            claim.settle(offset for offset in self.offsets(claim) if offset < position.offset)

    async def commit(self, positions: Mapping[HeldClaim, Position]) -> Collection[SourceClaim]:
        """Settle the records before these positions, and commit the positions."""
        await self.settle(positions)
        committed: dict[SourceClaim, Position] = dict(positions.items())
        return await self.source.commit(committed)

    async def fetch(self, claims: Sequence[HeldClaim], most: int) -> None:
        """Fetch once."""
        fetched = await self.source.fetch(claims, most)
        assert fetched is not None, "the source ended while records were expected"
        self.check(fetched, claims, most)

    def check(self, fetched: Sequence[Fetched], claims: Sequence[HeldClaim], most: int) -> None:
        """Check one answer, and add it to the delivered records."""
        count = sum(len(each.records) for each in fetched)
        assert count <= most, f"{count} records were delivered, but at most {most} were requested"
        for claim, records, next_offset, _ in fetched:
            held = next((each for each in claims if each is claim), None)
            assert held is not None, f"records of {claim!r}, which was not requested"
            assert not held.is_closed, f"records of {claim!r}, which has ended"
            self._take(held, records, next_offset)

    def _take(self, claim: HeldClaim, records: Sequence[SourceRecord], next_offset: int) -> None:
        reached = self.reached(claim)
        for record in records:
            assert (record.topic, record.partition) == claim.partition
            assert record.offset >= reached, (
                f"{claim.partition}: offset {record.offset} was delivered after everything before "
                f"{reached}: out of order, repeated, or reported as a hole before"
            )
            reached = record.offset + 1
        self._delivered.setdefault(claim, []).extend(records)
        self._reached[claim] = max(reached, next_offset)


class HeldClaim:
    """A claim of a recording host."""

    def __init__(self, partition: TopicPartition, start: Position) -> None:
        self.partition = partition
        self.start = start
        """The stored position that the source reported."""
        self.is_closed = False
        self._settled: set[int] = set()
        self._untold: list[int] = []

    def settle(self, offsets: Iterable[int]) -> None:
        """Settle the records at these offsets, for a source that settles each record separately."""
        new = {*offsets} - self._settled
        self._settled |= new
        self._untold += new

    def take_settled(self) -> Settled:
        """Return the offsets that were settled since the last call."""
        told, self._untold = Settled(sorted(self._untold)), []
        return told

    def end(self) -> None:
        """End the claim."""
        self.is_closed = True

    def pass_settled(self, offset: int, least: int) -> int:
        """Return the position unchanged: nothing is settled beyond it."""
        del least
        return offset

    def __repr__(self) -> str:
        state = "closed" if self.is_closed else "open"
        return f"HeldClaim({self.partition}, from {self.start.offset}, {state})"


class RecordingHost:
    """A host that records the calls of one source."""

    def __init__(self, news: News | None = None) -> None:
        self.room_bytes = 1 << 62
        """The room that it tells."""
        self.claims: list[HeldClaim] = []
        """Every claim that began, in order."""
        self.asked: list[SourceClaim] = []
        """The claims of all revokes."""
        self._answers: Mapping[TopicPartition, Position] = {}
        self._draining: Callable[[], Awaitable[object]] | None = None
        self.within: list[float] = []
        """The seconds that each revoke allowed."""
        self.reports: list[str | None] = []
        self.news = news or News()

    @property
    def open(self) -> list[HeldClaim]:
        """The claims that have not ended."""
        return [claim for claim in self.claims if not claim.is_closed]

    def claim_of(self, partition: TopicPartition) -> HeldClaim:
        """Return the open claim of a partition."""
        return next(claim for claim in self.open if claim.partition == partition)

    async def wait_for_claims(self, count: int) -> list[HeldClaim]:
        """Suspend until this number of claims is open."""
        await self.news.wait_for(lambda: len(self.open) == count)
        return self.open

    def will_answer(self, positions: Mapping[TopicPartition, Position]) -> None:
        """Script the positions that revokes return."""
        self._answers = positions

    def will_drain(self, draining: Callable[[], Awaitable[object]]) -> None:
        """Script a function that each revoke runs."""
        self._draining = draining

    # -- the source's side -------------------------------------------------------------------------

    def assigned(self, starts: Mapping[TopicPartition, Position]) -> Sequence[SourceClaim]:
        """Begin claims. Fails for a partition that already has one."""
        held = {claim.partition for claim in self.open}
        assert not held & starts.keys(), f"assigned twice: {held & starts.keys()}"
        begun = [HeldClaim(partition, start) for partition, start in starts.items()]
        self.claims += begun
        self.news.fire()
        return begun

    async def revoked(
        self, claims: Collection[SourceClaim], within: float
    ) -> Mapping[SourceClaim, Position]:
        """Return the scripted positions."""
        self.within.append(within)
        self.asked += claims
        self.news.fire()
        if self._draining is not None:
            await self._draining()
        return {
            claim: self._answers[claim.partition]
            for claim in claims
            if claim.partition in self._answers and not claim.is_closed
        }

    def ended(self, claims: Collection[SourceClaim]) -> None:
        """End claims."""
        for claim in self.open:
            if any(claim is each for each in claims):
                claim.end()
        self.news.fire()

    def cancelled(self, claim: SourceClaim, offsets: Collection[int]) -> None:
        """Ignore it: no test of the suite cancels a record."""

    def reported(self, trouble: str | None) -> None:
        """Note the report."""
        self.reports.append(trouble)
        self.news.fire()


class News:
    """The events of one test, fired by all its parts."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def fire(self) -> None:
        """Signal an event."""
        self._event.set()

    async def wait_for(self, condition: Callable[[], object]) -> None:
        """Suspend until the condition is true; safe to cancel."""
        while not condition():
            self._event.clear()
            await self._event.wait()
