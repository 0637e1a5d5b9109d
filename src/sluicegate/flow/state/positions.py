"""States that are stored together with the positions of a source.

1. `take` takes over a partition: an uncommitted transaction of the previous owner fails. The state
   is read afterwards, so it belongs to the position.
2. A transaction contains the changes of the events before a position, and the position.
3. After a failed transaction, the keeper is queried to find out whether it was stored, before the
   next one.
4. A position with another owner is *lost*: nothing more of the partition is stored here.
5. A position moves only while the store of its claim is open: from the restore of the state to the
   end of the claim. A consumer that runs without the state stores nothing.
6. The start of a partition without a stored position, such as the current end of a log, is stored
   with the state as soon as that has been read: before any event, so that a crash skips none.
"""

from __future__ import annotations

import asyncio
import logging
from abc import abstractmethod
from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING, Protocol

from ..._core.checks import bad
from ..._core.clock import LOOP_CLOCK
from ..._core.errors import ConfigError, PositionLost
from ..._core.logs import for_log, log_safely
from ..._core.opening import Openable
from ..._core.source import Source, TransactionalSource
from .changes import COPY, is_of_a_state

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Collection, Mapping, Sequence

    from ..._core.clock import Clock
    from ..._core.source import Position, TopicPartition
    from ...consumer.jobs.state import StateStore
    from .changes import Stored, TakenChanges
    from .store import KeptStore

TELL_EVERY = 5.0
"""Seconds between log lines about a restore."""

_LOST = "the state of %s: its position is lost (%s): no further change of this claim is stored"
_NO_STATE = (
    "there is no state of %s, and no position, but the group's offset %d is a copy of a position that "
    "was stored with a state: the tables were emptied or replaced, or this is another database. "
    "Restore them; or, to begin with an empty state, stop the group and set its offset by "
    "kafka-consumer-groups.sh --reset-offsets"
)
_RESTORING = "the state of %s: %s so far"
_RESTORED = "the state of %s: %s"


class PositionedState(Openable):
    """Base of states whose changes are stored with positions: a `PositionedBackend`."""

    _kept: StatePositions | None = None
    _source: Source | None = None
    _fitting = ""
    """Sources that can leave their positions to it, for error messages."""

    def __init__(self) -> None:
        self._stores: dict[TopicPartition, KeptStore] = {}

    @abstractmethod
    def _keeper(self, source: TransactionalSource) -> StateKeeper:
        """Create the keeper for the states of a source.

        Raises `ConfigError` for an unsuitable source, and `ClosedError` unless this is open.
        """

    @abstractmethod
    def _made(
        self, partition: TopicPartition, entries: dict[str, Stored], offset: int
    ) -> KeptStore:
        """Create the store of a partition, with the entries before this offset."""

    def attach(self, source: Source) -> Source:
        """Return the source for the consumer, with its positions in this state. May be called once.

        Raises `ConfigError` for a source that cannot leave its positions to this state, and
        `ClosedError` unless the state is open.
        """
        if not isinstance(source, TransactionalSource):
            rule = f"must be a source that can leave its positions to the state: {self._fitting}"
            raise bad("source", source, rule)
        keeper = self._keeper(source)
        if self._kept is not None:
            raise bad(
                "source", source, "must be the only source of a state; create a state for each"
            )
        self._kept = StatePositions(keeper)
        self._source = source.with_positions(self._kept)
        return self._source

    # -- the interface for the consumer ------------------------------------------------------------

    def check_source(self, source: Source) -> None:
        """Raise `ConfigError` unless the source has its positions in this state."""
        if source is not self._source or self._kept is None:
            rule = "has to store the positions of the consumer's source: Consumer(state.attach(source))"
            raise bad("state", self, rule)

    def progress(self, partition: TopicPartition) -> str:
        """Return the progress of a restore, for operators; empty if there is none."""
        return "" if self._kept is None else self._kept.progress(partition)

    async def open(self, partition: TopicPartition) -> StateStore:
        """Read the state of a partition. Suspends. Raises `PositionLost`, and the server's errors."""
        if self._kept is None:
            raise PositionLost(f"{partition} is not owned")
        made = partial(self._made, partition)
        store = await self._kept.restore(partition, made, LOOP_CLOCK)
        self._stores[partition] = store
        return store

    def close(self, partition: TopicPartition) -> None:
        """Drop the state of a partition; its position no longer moves."""
        store = self._stores.pop(partition, None)
        if store is not None and self._kept is not None:
            self._kept.end(partition, store)


logger = logging.getLogger("sluicegate.flow")


class HeldState:
    """The position of an owned partition, and its state."""

    def __init__(self, offset: int | None) -> None:
        self.offset = offset
        """The last known stored position."""
        self.start: int | None = None
        """The position to store when the state has been read; `None` for a stored one."""
        self.store: KeptStore | None = None
        self.turn = asyncio.Lock()
        self.doubted: TakenChanges | None = None
        """Changes that may or may not be stored."""
        self.is_ended = False
        self._copied: int | None = None
        """The copy of a position of a state, if that is the only position."""

    def has_begun_at(self, group_offset: Position) -> None:
        """Note the group's offset, if no position is stored."""
        if is_of_a_state(group_offset.metadata):
            self._copied = group_offset.offset

    def check_begins(self, partition: TopicPartition) -> None:
        """Raise `ConfigError` for a state without entries whose position has only a copy left."""
        if self._copied is not None:
            raise ConfigError(_NO_STATE % (partition, self._copied))

    def begin_at(self, offset: int) -> None:
        """Store this position when the state has been read, unless it is known already."""
        if self.store is None:
            self.start = offset

    def keep(self, store: KeptStore) -> None:
        """Set the state."""
        self.store = store

    def doubt(self, taken: TakenChanges) -> None:
        """Record that these changes may or may not be stored."""
        self.doubted = taken

    def know(self, stored: TakenChanges | None) -> None:
        """Record that these changes are stored, or with `None` that no new ones are."""
        self.doubted = None
        if stored is not None:
            self.offset = stored.offset

    def end(self) -> None:
        """Stop all moves of the position."""
        self.is_ended = True

    def is_there(self, offset: int) -> bool:
        """Whether this position and the state before it are stored."""
        if self.doubted is not None or self.offset != offset:
            return False
        return self.store is None or not self.store.owes(offset)

    @property
    def free(self) -> KeptStore | None:
        """The state, if it can still be stored with a position; otherwise `None`."""
        store = self.store
        return None if self.is_ended or store is None or store.loss is not None else store


class Restoring:
    """A state that is being read."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.began = clock.now()
        self.entries: dict[str, Stored] = {}
        self._rows = 0

    def add(self, page: Sequence[tuple[str, Stored | None]]) -> None:
        """Add a page; the last value of a key is valid."""
        entries = self.entries
        for key, value in page:
            if value is None:
                entries.pop(key, None)
            else:
                entries[key] = value
        self._rows += len(page)

    def __str__(self) -> str:
        seconds = self._clock.now() - self.began
        rate = f", {self._rows / seconds:,.0f}/s" if seconds > 0 else ""
        more = "" if self._rows == len(self.entries) else f" of {self._rows:,} records"
        return f"{len(self.entries):,} entries{more} in {seconds:.1f} s{rate}"


class StatePositions:
    """The position store that is passed to a source."""

    def __init__(self, keeper: StateKeeper) -> None:
        self._keeper = keeper
        self._held: dict[TopicPartition, HeldState] = {}
        self._restoring: dict[TopicPartition, Restoring] = {}

    # -- the interface for the source --------------------------------------------------------------

    @property
    def keeps_group_offsets(self) -> bool:
        """Whether its positions are the group's own offsets."""
        return self._keeper.keeps_group_offsets

    @property
    def copy_metadata(self) -> str:
        """The metadata of copies of its positions."""
        return COPY

    def begins_at_offsets(self, offsets: Mapping[TopicPartition, Position]) -> None:
        """Note the offsets of the group: a copy without a state is refused."""
        for each, at in offsets.items():
            self._held[each].has_begun_at(at)

    async def take(
        self, partitions: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, Position]:
        """Take over these partitions; return their stored positions."""
        if not partitions:
            return {}
        known = await self._keeper.claim(partitions)
        for each in partitions:
            self._held[each] = HeldState(known[each].offset if each in known else None)
        return known

    async def store(
        self, positions: Mapping[TopicPartition, Position]
    ) -> Collection[TopicPartition]:
        """Store positions with the state before them; return the partitions known to be stored.

        A position whose state has not been read yet is stored afterwards. Raises the first error
        after all partitions have been tried.
        """
        held = {each: self._held[each] for each in positions if each in self._held}
        for each, state in held.items():
            state.begin_at(positions[each].offset)
        there = [each for each in held if held[each].is_there(positions[each].offset)]
        moves = {
            each: store
            for each, state in held.items()
            if each not in there and (store := state.free) is not None
        }
        ends = await asyncio.gather(
            *[
                self._store(each, held[each], store, positions[each].offset)
                for each, store in moves.items()
            ],
            return_exceptions=True,
        )
        errors = dict(zip(moves, ends, strict=True))
        for partition, error in errors.items():
            if isinstance(error, PositionLost):
                self._lose(partition, held[partition], error)
        for error in errors.values():
            if error is not None and not isinstance(error, PositionLost):
                raise error
        return [*there, *(each for each, error in errors.items() if error is None)]

    def release(self, partitions: Collection[TopicPartition]) -> None:
        """Drop these partitions."""
        for each in partitions:
            if (held := self._held.pop(each, None)) is not None:
                held.end()
        self._keeper.release(partitions)

    # -- transactions ------------------------------------------------------------------------------

    async def _store(
        self, partition: TopicPartition, held: HeldState, store: KeptStore, offset: int
    ) -> None:
        async with held.turn:
            await self._find_out(partition, held)
            if held.is_there(offset):
                return
            taken = store.log.take(offset)
            held.doubt(taken)
            await self._keeper.store(partition, taken)
            held.know(taken)
            store.log.confirm(taken)

    async def _find_out(self, partition: TopicPartition, held: HeldState) -> None:
        """Find out whether the last transaction is stored, if that is uncertain."""
        if (doubted := held.doubted) is None:
            return
        if await self._keeper.has_stored(partition, doubted):
            held.know(doubted)
            if held.store is not None:
                held.store.log.confirm(doubted)
        else:
            held.know(None)

    def _lose(self, partition: TopicPartition, held: HeldState, error: PositionLost) -> None:
        held.end()
        if held.store is not None:
            held.store.lose(error)
        log_safely(logger, logging.ERROR, _LOST, partition, for_log(error))

    # -- the state ---------------------------------------------------------------------------------

    async def restore(
        self,
        partition: TopicPartition,
        made: Callable[[dict[str, Stored], int], KeptStore],
        clock: Clock,
    ) -> KeptStore:
        """Read the state of an owned partition, and create its store from the entries and the
        position.

        Raises `PositionLost`, and the errors of its keeper.
        """
        held = self._of(partition)
        await self._find_out(partition, held)  # whether an earlier attempt has stored its start
        reading = self._restoring[partition] = Restoring(clock)
        told = reading.began
        try:
            async with aclosing(self._keeper.pages(partition, reading.entries)) as pages:
                async for page in pages:
                    reading.add(page)
                    if clock.now() - told >= TELL_EVERY:
                        told = clock.now()
                        log_safely(logger, logging.INFO, _RESTORING, partition, reading)
        finally:
            del self._restoring[partition]
        if self._held.get(partition) is not held:
            raise PositionLost(f"{partition} was released while its state was read")
        if not reading.entries:
            held.check_begins(partition)
        log_safely(logger, logging.INFO, _RESTORED, partition, reading)
        store = made(reading.entries, held.offset or 0)
        held.keep(store)
        if held.start is not None:
            await self._store(partition, held, store, held.start)
        return store

    def progress(self, partition: TopicPartition) -> str:
        """Return the progress of a restore, for operators; empty if there is none."""
        reading = self._restoring.get(partition)
        return "" if reading is None else str(reading)

    def end(self, partition: TopicPartition, store: KeptStore) -> None:
        """Stop moves of the position, since the claim of this store has ended."""
        held = self._held.get(partition)
        if held is not None and held.store is store:
            held.end()

    def _of(self, partition: TopicPartition) -> HeldState:
        held = self._held.get(partition)
        if held is None:
            raise PositionLost(f"{partition} is no longer owned")
        return held


class StateKeeper(Protocol):
    """The states and positions of one consumer group. All methods except `release` suspend."""

    @property
    def keeps_group_offsets(self) -> bool:
        """Whether its positions are the group's own offsets; see `PositionStore`."""
        ...

    async def claim(
        self, partitions: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, Position]:
        """Take over these partitions; return their stored positions.

        An uncommitted transaction of the previous owner fails from now on.
        """
        ...

    def pages(
        self, partition: TopicPartition, entries: Mapping[str, Stored]
    ) -> AsyncGenerator[Sequence[tuple[str, Stored | None]]]:
        """Yield the state of a claimed partition, one page at a time. The last value of a key is
        valid. `entries` are those of the pages before.

        Raises `ConfigError` if the state does not belong to the position.
        """
        ...

    async def store(self, partition: TopicPartition, taken: TakenChanges) -> None:
        """Store changes and the position after them, in one transaction.

        Raises `PositionLost` if the partition has another owner. After any error, `has_stored` has
        to be called before the next call.
        """
        ...

    async def has_stored(self, partition: TopicPartition, taken: TakenChanges) -> bool:
        """Whether a failed call of `store` has stored these changes nevertheless.

        Raises `PositionLost`. May return false for stored changes if they may be stored again.
        """
        ...

    def release(self, partitions: Collection[TopicPartition]) -> None:
        """Drop these partitions."""
