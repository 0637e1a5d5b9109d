"""The positions of a source, each stored in one transaction with the state before it.

1. `take` owns a partition: a transaction of the owner before, which has not committed, fails. The
   state is read after that, so it is the one of the position.
2. A transaction holds the changes of the events before a position, and the position.
3. After a transaction that failed, its keeper is asked whether it was stored, before the next one.
4. A position that has another owner is *lost*: nothing of the partition is stored any more, here.
5. A position moves only while the store of its claim is open: from the reading of the state to the end
   of the claim. A consumer that runs without the state stores nothing.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import aclosing
from typing import TYPE_CHECKING

from ..._core.errors import PositionLost
from ..._core.say import say
from ..._core.told import for_log

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from ..._core.clock import Clock
    from ..._core.source import Position, TopicPartition
    from .changes import Stored, TakenChanges
    from .keeper import StateKeeper
    from .store import KeptStore

logger = logging.getLogger("penstock.flow")

TELL_EVERY = 5.0
"""Seconds between lines about a restore."""

_LOST = "the state of %s: its position is lost (%s): nothing more of this claim is stored"
_RESTORING = "the state of %s: %s, and more"
_RESTORED = "the state of %s: %s"


class HeldState:
    """The position of a partition that is owned, and its state."""

    def __init__(self, offset: int | None) -> None:
        self.offset = offset
        """The stored position, as far as it is known."""
        self.store: KeptStore | None = None
        self.turn = asyncio.Lock()
        self.doubted: TakenChanges | None = None
        """Changes of which it is not known whether they are stored."""
        self.is_ended = False

    def keep(self, store: KeptStore) -> None:
        """Its state, from now on."""
        self.store = store

    def doubt(self, taken: TakenChanges) -> None:
        """These may be stored, or not."""
        self.doubted = taken

    def know(self, stored: TakenChanges | None) -> None:
        """These are stored, or nothing new is."""
        self.doubted = None
        if stored is not None:
            self.offset = stored.offset

    def end(self) -> None:
        """The position moves no more."""
        self.is_ended = True

    def is_there(self, offset: int) -> bool:
        """Whether this position, and the state before it, are stored."""
        if self.doubted is not None or self.offset != offset:
            return False
        return self.store is None or not self.store.owes(offset)

    @property
    def free(self) -> KeptStore | None:
        """The state, if the position may move with it."""
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
        """Add a page; the last value of a key counts."""
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
    """The store of positions that a source is given."""

    def __init__(self, keeper: StateKeeper) -> None:
        self._keeper = keeper
        self._held: dict[TopicPartition, HeldState] = {}
        self._restoring: dict[TopicPartition, Restoring] = {}

    # -- the store of a source ---------------------------------------------------------------------

    @property
    def keeps_group_offsets(self) -> bool:
        """Whether its positions are the group's own offsets."""
        return self._keeper.keeps_group_offsets

    async def take(
        self, partitions: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, Position]:
        """Own these partitions; return the positions of those that have one."""
        if not partitions:
            return {}
        known = await self._keeper.claim(partitions)
        for each in partitions:
            self._held[each] = HeldState(known[each].offset if each in known else None)
        return known

    async def store(
        self, positions: Mapping[TopicPartition, Position]
    ) -> Collection[TopicPartition]:
        """Store positions with the state before them; return the partitions where that is known.

        Raises the first error of those that could not be stored, after all have been tried.
        """
        held = {each: self._held[each] for each in positions if each in self._held}
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
            if held.doubted is not None:
                await self._find_out(partition, held, held.doubted, store)
                if held.is_there(offset):
                    return
            taken = store.log.take(offset)
            held.doubt(taken)
            await self._keeper.store(partition, taken)
            held.know(taken)
            store.log.stored(taken)

    async def _find_out(
        self, partition: TopicPartition, held: HeldState, doubted: TakenChanges, store: KeptStore
    ) -> None:
        if await self._keeper.has_stored(partition, doubted):
            held.know(doubted)
            store.log.stored(doubted)
        else:
            held.know(None)

    def _lose(self, partition: TopicPartition, held: HeldState, error: PositionLost) -> None:
        held.end()
        if held.store is not None:
            held.store.lose(error)
        say(logger, logging.ERROR, _LOST, partition, for_log(error))

    # -- the state ---------------------------------------------------------------------------------

    async def restore(
        self,
        partition: TopicPartition,
        made: Callable[[dict[str, Stored], int], KeptStore],
        clock: Clock,
    ) -> KeptStore:
        """Read the state of an owned partition, and make its store of the entries and the position.

        Raises `PositionLost`, and the errors of its keeper.
        """
        held = self._of(partition)
        reading = self._restoring[partition] = Restoring(clock)
        told = reading.began
        try:
            async with aclosing(self._keeper.pages(partition)) as pages:
                async for page in pages:
                    reading.add(page)
                    if clock.now() - told >= TELL_EVERY:
                        told = clock.now()
                        say(logger, logging.INFO, _RESTORING, partition, reading)
        finally:
            del self._restoring[partition]
        if self._held.get(partition) is not held:
            raise PositionLost(f"{partition} was given up while its state was read")
        say(logger, logging.INFO, _RESTORED, partition, reading)
        store = made(reading.entries, held.offset or 0)
        held.keep(store)
        return store

    def progress(self, partition: TopicPartition) -> str:
        """How far a restore has come, for operators; empty while there is none."""
        reading = self._restoring.get(partition)
        return "" if reading is None else str(reading)

    def ended(self, partition: TopicPartition, store: KeptStore) -> None:
        """The claim of this store has ended: its position moves no more."""
        held = self._held.get(partition)
        if held is not None and held.store is store:
            held.end()

    def _of(self, partition: TopicPartition) -> HeldState:
        held = self._held.get(partition)
        if held is None:
            raise PositionLost(f"{partition} is not owned any more")
        return held
