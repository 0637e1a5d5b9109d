"""A destination in memory that commits rows together with source positions, or fails as a test sets
it.

White box: a destination that joins positions, whose base class is private.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from sluicegate import Capabilities, PermanentError, WriteResult, flow
from sluicegate._core.transaction import Attempt
from sluicegate.consumer import Commits, MemorySource
from sluicegate.errors import PositionLost

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping

    from sluicegate import Batch
    from sluicegate._core.positions import PositionUnit
    from sluicegate.consumer import MemoryLog, Position, TopicPartition
    from sluicegate.testing import FakeClock

Place = tuple[str, "TopicPartition"]


class KeptRows:
    """The rows and positions of all owners."""

    def __init__(self) -> None:
        self.rows: list[Any] = []
        self.positions: dict[Place, Position | None] = {}
        self.epochs: dict[Place, int] = {}
        self.commits: list[tuple[int, Position]] = []
        """The number of rows of each commit, and its position."""

    @property
    def offsets(self) -> list[tuple[int, int]]:
        """Partition and offset of each row, in the order of commits."""
        return [(row.partition, row.offset) for row in self.rows]


class KeptSink:
    """The sink of one owner."""

    capabilities = Capabilities()
    keeps_group_offsets = False

    def __init__(self, kept: KeptRows) -> None:
        self.kept = kept
        self.refused: set[int] = set()
        """The offsets of records whose rows are refused."""
        self.before_commit: Callable[[], Awaitable[object]] | None = None
        self.after_commit: Callable[[], Awaitable[object]] | None = None
        """Awaited after a commit is applied and before it is answered."""
        self.before_claim: Callable[[], Awaitable[object]] | None = None
        self.before_read: Callable[[], Awaitable[object]] | None = None
        self.reads = 0
        self.writes = 0
        self.stores: list[Mapping[TopicPartition, Position]] = []
        self._mine: dict[Place, tuple[int, Position | None]] = {}

    async def write(self, batch: Batch[Any]) -> None:
        """Fail: rows may only be written in a transaction."""
        raise AssertionError("written outside a transaction")

    async def claim_positions(
        self, group: str, partitions: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, Position]:
        """Take ownership of these partitions."""
        if self.before_claim is not None:
            await self.before_claim()
        found: dict[TopicPartition, Position] = {}
        for each in partitions:
            place = (group, each)
            self.kept.epochs[place] = self.kept.epochs.get(place, 0) + 1
            position = self.kept.positions.get(place)
            self._mine[place] = self.kept.epochs[place], position
            if position is not None:
                found[each] = position
        return found

    async def read_positions(
        self, group: str, partitions: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, Position]:
        """Read the positions of owned partitions."""
        self.reads += 1
        if self.before_read is not None:
            await self.before_read()
        found: dict[TopicPartition, Position] = {}
        for each in partitions:
            place = (group, each)
            epoch, _ = self._mine[place]
            if self.kept.epochs[place] != epoch:
                raise PositionLost("another owner")
            position = self.kept.positions.get(place)
            self._mine[place] = epoch, position
            if position is not None:
                found[each] = position
        return found

    async def store_positions(
        self, group: str, positions: Mapping[TopicPartition, Position]
    ) -> Collection[TopicPartition]:
        """Store positions without rows."""
        self.stores.append(positions)
        return [each for each, at in positions.items() if self._move((group, each), at)]

    def release_positions(self, group: str, partitions: Collection[TopicPartition]) -> None:
        """Give up ownership of these partitions."""
        for each in partitions:
            self._mine.pop((group, each), None)

    @asynccontextmanager
    async def transaction(self, unit: PositionUnit | None) -> AsyncIterator[KeptTransaction]:
        """Commit rows and position together."""
        assert unit is not None
        within = KeptTransaction(self, unit)
        yield within
        if self.before_commit is not None:
            await self.before_commit()
        if not self._move((unit.group, unit.partition), unit.position):
            raise PositionLost("another owner")
        self.kept.rows += within.rows
        self.kept.commits.append((len(within.rows), unit.position))
        if self.after_commit is not None:
            await self.after_commit()
        within.commits()

    def _move(self, place: Place, position: Position) -> bool:
        epoch, known = self._mine[place]
        if self.kept.epochs[place] != epoch or self.kept.positions.get(place) != known:
            return False
        self.kept.positions[place] = position
        self._mine[place] = epoch, position
        return True


class KeptTransaction(Attempt):
    """A transaction of a `KeptSink`."""

    def __init__(self, sink: KeptSink, unit: PositionUnit) -> None:
        super().__init__(unit)
        self._sink = sink
        self.rows: list[Any] = []

    async def write(self, batch: Batch[Any]) -> WriteResult | None:
        """Collect the rows for the commit."""
        self._sink.writes += 1
        errors: dict[int, BaseException] = {
            index: PermanentError(f"{row.offset} is refused")
            for index, row in enumerate(batch)
            if row.offset in self._sink.refused
        }
        self.rows += [row for index, row in enumerate(batch) if index not in errors]
        return WriteResult.failed(batch, errors) if errors else None


def kept(
    log: MemoryLog, sink: Any, clock: FakeClock, *, ends: bool = True, **options: Any
) -> tuple[flow.TransactionalPipe, MemorySource]:
    """A transactional flow from a log into a sink, and its source."""
    source = MemorySource(log, ends=ends, clock=clock)
    options = {"commits": Commits(every=0.1, after=4), **options}
    return flow.transaction(source, sink, clock=clock, **options), source
