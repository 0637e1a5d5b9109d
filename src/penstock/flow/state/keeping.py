"""The positions of a source, each stored in one transaction with the state before it.

1. `take` owns a partition: a transaction of the owner before, which has not committed, raises
   `PositionLost` at its end. The state is read after that, so it is the one of the position.
2. A transaction writes the changes of the events before a position, and moves the position last, on
   the condition that the ownership is this one and the position the one that is known.
3. After a commit without an answer the position is read before the next one. The changes are written
   again then: they are values, not increments, and no other owner has written since.
4. A position that has another owner is *lost*: nothing of the partition is stored any more, here.
5. A position moves only while the store of its claim is open: from the reading of the state to the end
   of the claim. A consumer that runs without the state stores nothing.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

from ..._core.errors import PositionLost, UnavailableError
from ..._core.say import say
from ..._core.source import Position
from ..._core.told import for_log
from ...sinks.postgres.transactions.ledger import BEGIN_UNIT
from ...sinks.postgres.transactions.positions import IDLE_MOST
from .changes import ChangeLog
from .store import KeptStore

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from asyncpg.pool import PoolConnectionProxy

    from ..._clients.postgres.connections import Connections
    from ..._core.clock import Clock
    from ..._core.source import TopicPartition
    from ...sinks.postgres.transactions.positions import OwnedPosition, PositionTable
    from .codec import StateCodec
    from .table import StateTable

logger = logging.getLogger("penstock.flow")

TELL_EVERY = 5.0
"""Seconds between lines about a restore."""

_LOST = "the state of %s: its position is lost (%s): nothing more of this claim is stored"
_RESTORING = "the state of %s: %d entries in %.1f s (%.0f/s), and more"
_RESTORED = "the state of %s: %d entries in %.1f s"


class HeldState:
    """The position of a partition that is owned, and its state."""

    def __init__(self, owned: OwnedPosition) -> None:
        self.owned = owned
        self.store: KeptStore | None = None
        self.turn = asyncio.Lock()
        self.is_in_doubt = False
        self.is_ended = False

    @property
    def offset(self) -> int | None:
        """The stored position, as far as it is known."""
        return None if self.owned.position is None else self.owned.position.offset

    def keep(self, store: KeptStore) -> None:
        """Its state, from now on."""
        self.store = store

    def doubt(self) -> None:
        """The stored position may be another one."""
        self.is_in_doubt = True

    def know(self) -> None:
        """The stored position is known again."""
        self.is_in_doubt = False

    def end(self) -> None:
        """The position moves no more."""
        self.is_ended = True

    def is_there(self, offset: int) -> bool:
        """Whether this position, and the state before it, are stored."""
        if self.is_in_doubt or self.offset != offset:
            return False
        return self.store is None or not self.store.owes(offset)

    @property
    def free(self) -> KeptStore | None:
        """The state, if the position may move with it."""
        store = self.store
        return None if self.is_ended or store is None or store.lost is not None else store


class StatePositions:
    """The store of positions that a source is given."""

    def __init__(
        self,
        group: str,
        table: StateTable,
        positions: PositionTable,
        connections: Connections,
        home: str,
    ) -> None:
        self._group = group
        self._table = table
        self._positions = positions
        self._connections = connections
        self._home = home
        self._held: dict[TopicPartition, HeldState] = {}

    # -- the store of a source ---------------------------------------------------------------------

    @property
    def keeps_group_offsets(self) -> bool:
        """Its positions are rows of a table."""
        return False

    async def take(
        self, partitions: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, Position]:
        """Own these partitions; return the positions of those that have one."""
        if not partitions:
            return {}
        async with self._connections.lent() as con:
            claimed = await self._positions.claim(
                con, self._group, partitions, self._table.qualified, self._home, limit=self._limit
            )
        self._held.update({each.partition: HeldState(each) for each in claimed})
        return {each.partition: each.position for each in claimed if each.position is not None}

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

    @property
    def _limit(self) -> str:
        return self._connections.statements.limit

    # -- transactions ------------------------------------------------------------------------------

    async def _store(
        self, partition: TopicPartition, held: HeldState, store: KeptStore, offset: int
    ) -> None:
        async with held.turn, self._connections.lent() as con:
            if held.is_in_doubt:
                await self._find_out(con, held)
            taken, position = store.log.take(offset), Position(offset)
            idle = f"SET LOCAL idle_in_transaction_session_timeout = '{IDLE_MOST}s'"
            held.doubt()
            try:
                await con.execute(f"{BEGIN_UNIT}; {idle}; {self._limit}")
                await self._table.apply(con, self._group, partition, taken.changes)
                await self._positions.advance(con, held.owned, position)
            except BaseException:
                held.know()  # nothing was applied
                raise
            if (answer := await con.execute("COMMIT")) != "COMMIT":
                held.know()
                raise UnavailableError(f"the transaction ended by {answer} instead of COMMIT")
            held.owned.moved(position)
            held.know()
            store.log.stored(taken)

    async def _find_out(self, con: PoolConnectionProxy[Any], held: HeldState) -> None:
        """Read the position after a commit without an answer. Raises `PositionLost`."""
        held.owned.moved(await self._positions.read(con, held.owned, limit=self._limit))
        held.know()

    def _lose(self, partition: TopicPartition, held: HeldState, error: PositionLost) -> None:
        held.end()
        if held.store is not None:
            held.store.lose(error)
        say(logger, logging.ERROR, _LOST, partition, for_log(error))

    # -- the state ---------------------------------------------------------------------------------

    async def restore(
        self, partition: TopicPartition, limits: tuple[int, int], codec: StateCodec, clock: Clock
    ) -> KeptStore:
        """Read the state of an owned partition. Raises `PositionLost`, and the server's errors."""
        held = self._of(partition)
        entries: dict[str, Any] = {}
        began = told = clock.now()
        async with self._connections.lent() as con:
            await con.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            async for page in self._table.pages(con, self._group, partition):
                entries.update(page)
                if (now := clock.now()) - told >= TELL_EVERY:
                    told, seconds = now, now - began
                    count = len(entries)
                    args = partition, count, seconds, count / seconds
                    say(logger, logging.INFO, _RESTORING, *args)
            await con.execute("COMMIT")
        if self._held.get(partition) is not held:
            raise PositionLost(f"{partition} was given up while its state was read")
        say(logger, logging.INFO, _RESTORED, partition, len(entries), clock.now() - began)
        log = ChangeLog(*limits, at=held.offset or 0)
        store = KeptStore(partition, entries, log, codec)
        held.keep(store)
        return store

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
