"""The positions of a source, each stored in one transaction with the state before it.

1. `take` takes over a partition: an uncommitted transaction of the previous owner fails. The state
   is read afterwards, so it belongs to the position.
2. A transaction contains the changes of the events before a position, and the position.
3. After a failed transaction, the keeper is asked whether it was stored, before the next one.
4. A position with another owner is *lost*: nothing more of the partition is stored here.
5. A position moves only while the store of its claim is open: from the restore of the state to the
   end of the claim. A consumer that runs without the state stores nothing.
6. The start of a partition without a stored position, such as the current end of a log, is stored
   with the state as soon as that has been read: before any event, so that a crash skips none.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import aclosing
from typing import TYPE_CHECKING

from ..._core.errors import ConfigError, PositionLost
from ..._core.logs import for_log, log_safely
from .mark import COPY, is_of_a_state

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from ..._core.clock import Clock
    from ..._core.source import Position, TopicPartition
    from .changes import Stored, TakenChanges
    from .keeper import StateKeeper
    from .store import KeptStore

logger = logging.getLogger("sluicegate.flow")

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
        return None if self.is_ended or store is None or store.lost is not None else store


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
        """Forget these partitions."""
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
            store.log.stored(taken)

    async def _find_out(self, partition: TopicPartition, held: HeldState) -> None:
        """Find out whether the last transaction is stored, if that is uncertain."""
        if (doubted := held.doubted) is None:
            return
        if await self._keeper.has_stored(partition, doubted):
            held.know(doubted)
            if held.store is not None:
                held.store.log.stored(doubted)
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

    def ended(self, partition: TopicPartition, store: KeptStore) -> None:
        """Stop moves of the position, since the claim of this store has ended."""
        held = self._held.get(partition)
        if held is not None and held.store is store:
            held.end()

    def _of(self, partition: TopicPartition) -> HeldState:
        held = self._held.get(partition)
        if held is None:
            raise PositionLost(f"{partition} is no longer owned")
        return held
