"""The positions of a transactional flow: the owned partitions, and the committed offsets.

1. The claim of a partition takes over its position in the destination. From then on the position is
   known here, and moves with each commit.
2. Only one operation at a time moves a position: a transaction, or a store without rows. A store
   leaves out a partition with a transaction in progress, which stores a later position itself.
3. After a failure with an unknown outcome, a position is *in doubt*: it is read before anything
   else is written. Records before the stored position are done.
4. A *lost* position belongs to another process. Nothing more of the claim is applied, and it waits
   for its revoke. If the group still assigns the claim to this process, the loss was an error: the
   position was taken by a process that did not know yet that it had lost the partition, or a
   transaction exceeded a time limit. The position is therefore claimed again after a while, unless
   it is before the last commit of this claim.
5. An error of a position does not concern the records: it is an outage, regardless of its duration.
6. A source with leases has no position to store (`LeasedPositions`): the last statement of a
   transaction settles its records under their lease. If the lease has ended, the transaction is not
   applied. After a failure with an unknown outcome, the source is queried for the settled records
   before anything else is written.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Protocol

from .._core.classify import caused
from .._core.clock import Signal, wait_until
from .._core.errors import PositionLost, UnavailableError
from .._core.logs import for_log, log_safely
from .._core.positions import PositionUnit
from .._core.source import Position
from .._core.text import text_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Collection, Iterator, Mapping
    from contextlib import AbstractAsyncContextManager

    from .._core.clock import Clock
    from .._core.positions import KeepsPositions, SettlesInTransaction
    from .._core.source import SourceClaim, TopicPartition


logger = logging.getLogger("sluicegate.flow")

LOOK_AFTER = 1.0
"""Seconds for which a batch of a lost claim waits for the revoke before it is retried."""

RECLAIM_AFTER = 10.0
"""Seconds without a revoke after which a lost position is claimed again. A live member learns of a
rebalance in less time.
"""

_LOST = "%s: the position of %s is lost (%s): no further record of this claim is applied"
_REGAINED = "%s: %s is still owned, so its position is claimed again; it continues at %s"


class HeldPosition:
    """The position of one claim."""

    def __init__(self, position: Position | None) -> None:
        self.position = position
        """The last known stored position; `None` if none is stored."""
        self._done = 0
        """This claim has committed the records before this offset. The stored position may be
        beyond the records, if the log was replaced.
        """
        self.is_in_doubt = False
        self.lost: str | None = None
        """The reason why it belongs to another process."""
        self.lost_at = 0.0
        self.turn = asyncio.Lock()

    def passes(self, offset: int) -> bool:
        """Whether this claim has committed the record at this offset."""
        return offset < self._done

    def confirm(self, position: Position) -> None:
        """Set the stored position."""
        self.position, self._done, self.is_in_doubt = position, position.offset, False

    def read(self, position: Position | None) -> None:
        """Set the position that was read. A changed position was stored by this claim."""
        if position is not None and position != self.position:
            self.confirm(position)
        self.is_in_doubt = False

    def doubt(self) -> None:
        """Mark the stored position as uncertain."""
        self.is_in_doubt = True

    def lose(self, reason: str, now: float) -> bool:
        """Mark it as owned by another process; return whether this is new."""
        is_new, self.lost = self.lost is None, reason
        self.lost_at = now if is_new else self.lost_at
        return is_new

    def regain(self, position: Position | None) -> bool:
        """Record that it was claimed again; return whether this claim can continue from there."""
        before = 0 if self.position is None else self.position.offset
        if (0 if position is None else position.offset) < before:
            return False
        self.read(position)
        self.lost = None
        return True


class KeepsMoves(Protocol):
    """Moves the positions of claims in transactions of a destination."""

    def moving(self, claim: SourceClaim) -> AbstractAsyncContextManager[HeldPosition]:
        """Yield the position of a claim, which moves only in this context.

        It is read again if in doubt.
        """
        ...

    def unit(self, claim: SourceClaim, position: Position) -> PositionUnit:
        """Build the unit of a transaction that moves the position of the claim to this one."""
        ...


class PositionKeeper:
    """The position store that a transactional flow passes to its source."""

    def __init__(self, destination: KeepsPositions, group: str, name: str, clock: Clock) -> None:
        self._destination = destination
        self._group = group
        self._name = name
        self._clock = clock
        self._held: dict[TopicPartition, HeldPosition] = {}
        self._released = Signal()

    # -- the interface for the source --------------------------------------------------------------

    @property
    def keeps_group_offsets(self) -> bool:
        """Whether the destination stores positions as the offsets of the group."""
        return self._destination.keeps_group_offsets

    @property
    def copy_metadata(self) -> str:
        """Always empty: positions are copied with their metadata."""
        return ""

    def begins_at_offsets(self, offsets: Mapping[TopicPartition, Position]) -> None:
        """Do nothing: a flow whose positions were deleted begins at their copies."""

    async def take(
        self, partitions: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, Position]:
        """Take over these partitions; return the stored positions."""
        known = await self._destination.claim_positions(self._group, partitions)
        for each in partitions:
            self._held[each] = HeldPosition(known.get(each))
        return known

    async def store(
        self, positions: Mapping[TopicPartition, Position]
    ) -> Collection[TopicPartition]:
        """Store positions without rows; return the partitions whose positions are stored."""
        free = {each: held for each in positions if (held := self._free(each)) is not None}
        same = [each for each, held in free.items() if held.position == positions[each]]
        new = {
            each: positions[each]
            for each, held in free.items()
            if each not in same and not held.passes(positions[each].offset)
        }
        if not new:
            return same
        async with AsyncExitStack() as turns:
            for each in sorted(new):
                await turns.enter_async_context(free[each].turn)
            try:
                stored = set(await self._destination.store_positions(self._group, new))
            except BaseException:
                for each in new:
                    free[each].doubt()
                raise
            for each, position in new.items():
                if each in stored:
                    free[each].confirm(position)
                else:
                    self._lose(each, free[each], "another process has changed it")
        return [*same, *stored]

    def release(self, partitions: Collection[TopicPartition]) -> None:
        """Drop these partitions."""
        for each in partitions:
            self._held.pop(each, None)
        self._destination.release_positions(self._group, partitions)
        self._released.fire()

    def _free(self, partition: TopicPartition) -> HeldPosition | None:
        """The position of a partition, unless it is in use, in doubt or lost."""
        held = self._held.get(partition)
        if held is None or held.is_in_doubt or held.lost is not None or held.turn.locked():
            return None
        return held

    # -- the interface for the flow ----------------------------------------------------------------

    @asynccontextmanager
    async def moving(self, claim: SourceClaim) -> AsyncIterator[HeldPosition]:
        """Lock the position of a claim's partition, which moves only in this context.

        A position in doubt is read again. Raises `PositionLost`, after a while, for a partition
        that is not owned, and `UnavailableError` if the position cannot be read.
        """
        partition = claim.partition
        held = self._held.get(partition)
        if held is None:
            raise PositionLost(f"{partition} is no longer owned")
        async with held.turn:
            if held.lost is not None:
                await wait_until(self._clock, self._clock.now() + LOOK_AFTER, self._released)
                if not await self._regain(partition, held):
                    raise PositionLost(held.lost)
            try:
                if held.is_in_doubt:
                    with as_outage(partition):
                        known = await self._destination.read_positions(self._group, [partition])
                    held.read(known.get(partition))
                yield held
            except PositionLost as error:
                self._lose(partition, held, str(error))
                raise

    def unit(self, claim: SourceClaim, position: Position) -> PositionUnit:
        """Build the unit of a transaction that stores this position."""
        return PositionUnit(self._group, claim.partition, position)

    async def _regain(self, partition: TopicPartition, held: HeldPosition) -> bool:
        """Claim a lost position again if its revoke is long overdue."""
        is_due = self._clock.now() >= held.lost_at + RECLAIM_AFTER
        if not is_due or self._held.get(partition) is not held:
            return False
        with as_outage(partition):
            known = await self._destination.claim_positions(self._group, [partition])
        if self._held.get(partition) is not held:  # revoked in the meantime
            if partition not in self._held:
                self._destination.release_positions(self._group, [partition])
            return False
        if not held.regain(known.get(partition)):
            return False
        at = "its beginning" if held.position is None else held.position.offset
        log_safely(logger, logging.WARNING, _REGAINED, self._name, partition, at)
        return True

    def _lose(self, partition: TopicPartition, held: HeldPosition, reason: str) -> None:
        if held.lose(reason, self._clock.now()):
            log_safely(logger, logging.ERROR, _LOST, self._name, partition, reason)


@contextmanager
def as_outage(partition: TopicPartition) -> Iterator[None]:
    """Convert errors of a position to `UnavailableError`, except a loss."""
    try:
        yield
    except (PositionLost, UnavailableError):
        raise
    except Exception as error:
        text = f"the position of {partition} cannot be determined"
        made = UnavailableError(f"{text} ({text_of(error)})")
        raise caused(made, error, summary=f"{text} ({for_log(error)})") from error


class LeasedPositions:
    """The positions of leases, as moved by a transactional flow."""

    def __init__(self, source: SettlesInTransaction) -> None:
        self._source = source
        self._doubted: dict[SourceClaim, HeldPosition] = {}
        """Positions in doubt, until their claims end: if a later attempt fails as well, it must not
        repeat the writes of the one in doubt.
        """

    @asynccontextmanager
    async def moving(self, claim: SourceClaim) -> AsyncIterator[HeldPosition]:
        """Yield the position of a claim, which has one transaction in progress at a time.

        Raises `PositionLost` for a claim that has ended, and `UnavailableError` if the source
        cannot be reached.
        """
        held = self._doubted.get(claim) or HeldPosition(None)
        if held.is_in_doubt:
            with as_outage(claim.partition):
                held.read(Position(await self._source.fetch_settled_offset(claim)))
        try:
            yield held
        finally:
            if held.is_in_doubt:
                self._doubted[claim] = held
            for each in [each for each in self._doubted if each.is_closed]:
                del self._doubted[each]

    def unit(self, claim: SourceClaim, position: Position) -> PositionUnit:
        """Build the unit of a transaction that settles the records before this position."""
        move = self._source.move_to(claim, position)
        return PositionUnit(self._source.group, claim.partition, position, move)
