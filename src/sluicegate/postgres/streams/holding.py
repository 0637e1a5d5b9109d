"""The slots of this process: their locks and claims, from beginning to end.

1. A slot is locked, then its position is read, then its claim begins. The position therefore
   includes all earlier work of other processes.
2. A claim is released in this order: the host drains running messages, its position is stored, the
   claim ends, the lock is released. A loss ends the claim immediately, and stores nothing.
3. Only one attempt to store positions or to begin claims is in progress at a time. A position that
   is read for a new claim can therefore not be overtaken by an older attempt of this process.
4. From the moment a lock is requested it is marked for release, unless a claim begins, so that an
   error leaves no lock behind. Marked locks are released before others are taken, and at the end.
5. Locks that were not extended within the longest possible lease are lost, with their claims.
6. A slot that another session has locked, such as an operator's, delays itself only: its position
   is stored, and its lock extended, as soon as it is free.
"""

from __future__ import annotations

import asyncio
import logging
import math
from typing import TYPE_CHECKING

from ..._core.logs import for_log, log_safely, named
from ..._core.runtime.threads import close_within
from ..._core.source import TopicPartition
from ..._core.subscriptions import SkipsLocked, slot_lock

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from ..._core.clock import Clock
    from ..._core.source import ClaimHost, Position, SourceClaim
    from ..._core.subscriptions import Subscribed, SubscriptionLocks
    from .options import StreamOptions
    from .slots import HeldSlot, SlotBook, SlotStart, StoredSlots

logger = logging.getLogger("sluicegate.postgres")

KEEPS = 3
"""Intervals without a response after which locks are considered lost."""
UNLOCK_WITHIN = 2.0
"""Seconds for unlocking at the end. Remaining leases expire."""

_LOST = "%s: the slots %s are lost (%s); their messages without a stored position run again"
_NOT_STORED = (
    "%s: the last positions of slots %s are not stored (%s); their uncommitted messages run again"
)
_LOCKED = (
    "%s: another session keeps rows of slots locked (%s); their positions are stored, and their leases "
    "extended, after it"
)
_NOT_UNLOCKED = "%s: slots could not be unlocked (%s); their locks expire by themselves"


class SlotHolder:
    """The locks and claims of one open source."""

    def __init__(
        self,
        options: StreamOptions,
        book: SlotBook,
        stored: StoredSlots,
        *,
        locks: SubscriptionLocks,
        host: ClaimHost,
        clock: Clock,
    ) -> None:
        self._name = options.subscription
        self._topic = options.selection.topic
        self._book = book
        self._stored = stored
        self._locks = locks
        self._host = host
        self._clock = clock
        self._ending: set[int] = set()
        """The slots whose locks are to be released."""
        self._turn = asyncio.Lock()
        self.has_locked = False
        """Whether another session keeps slots locked, so that their locks are not extended."""

    @property
    def kept_until(self) -> float:
        """The time at which the first lock may have expired, unless it is extended before."""
        return min([self._until(each) for each in self._book.all], default=math.inf)

    def in_time(self, slots: Iterable[HeldSlot]) -> list[HeldSlot]:
        """Return those whose locks were extended in time, and cannot have expired unnoticed."""
        now = self._clock.now()
        return [each for each in slots if now < self._until(each)]

    def _until(self, held: HeldSlot) -> float:
        every = self._locks.keep_every
        return math.inf if every is None else held.kept_at + KEEPS * every

    # -- claims ------------------------------------------------------------------------------------

    async def claim(self, slots: Collection[int], most: int) -> int:
        """Claim up to `most` of these slots if they are free; return their number.

        Raises the errors of the state, its store and the locks, without claiming anything.
        """
        async with self._turn:
            await self._unlock_ended()
            names = {slot: slot_lock(self._name, slot) for slot in slots if slot not in self._book}
            self._ending.update(names)
            asked_at = self._clock.now()
            taken = await self._locks.lock(list(names.values()))
            free = [slot for slot, name in names.items() if name in taken]
            self._ending.difference_update([slot for slot in names if slot not in free])
            if chosen := free[:most]:
                starts = await self._stored.starts(chosen)
                self._begin(starts, asked_at)
            await self._unlock_ended()
            return len(chosen)

    def _begin(self, starts: Mapping[int, SlotStart], asked_at: float) -> None:
        partitions = {TopicPartition(self._topic, slot): at.position for slot, at in starts.items()}
        claims = self._host.assigned(partitions)
        self._book.begin(claims, starts, self._clock.now(), asked_at)
        self._ending.difference_update(starts)
        if self._stored.are_elsewhere:  # the positions of the subscription itself may differ
            for slot in starts:
                self._book.at(slot).doubt()

    async def give_up(self, slots: Sequence[HeldSlot], within: float) -> None:
        """Drain the claims, store the positions, and release the slots.

        Errors of the store are only logged: uncommitted messages run again elsewhere. Raises the
        errors of the locks.
        """
        claims = [held.claim for held in slots]
        try:
            positions = await self._host.revoked(claims, within)
            stored = await self.commit(positions) if positions else []
            left = [each for each in self._book.among(positions) if each.claim not in stored]
            if left:
                told = _names(left)
                log_safely(
                    logger, logging.WARNING, _NOT_STORED, self._name, told, "they are locked"
                )
        except Exception as error:
            told = _names(slots)
            log_safely(logger, logging.WARNING, _NOT_STORED, self._name, told, for_log(error))
        finally:
            self.end(slots)
        await self.unlock_ended()

    def end(self, slots: Collection[HeldSlot]) -> None:
        """End the claims of these slots without a commit; their locks are released later."""
        ended = self._book.end(slots)
        if ended:
            self._ending.update(held.slot for held in ended)
            self._stored.release([held.slot for held in ended])
            self._host.ended([held.claim for held in ended])

    def lose(self, slots: Collection[HeldSlot], reason: str) -> None:
        """End claims that have another owner now."""
        held = [each for each in slots if self._book.holds(each)]
        if held:
            log_safely(logger, logging.WARNING, _LOST, self._name, _names(held), reason)
            self.end(held)

    # -- positions ---------------------------------------------------------------------------------

    async def commit(self, positions: Mapping[SourceClaim, Position]) -> list[SourceClaim]:
        """Store the positions of open claims; return the claims whose positions are stored.

        A claim whose position was refused is lost. One whose slot is locked stays.
        """
        async with self._turn:
            held = {
                found: position
                for claim, position in positions.items()
                if (found := self._book.of(claim)) is not None
            }
            stored, refused = await self._stored.store(held) if held else ([], [])
        self.lose(refused, "their stored positions were moved by others")
        left = [each for each in held if each not in stored and self._book.holds(each)]
        if left:
            self._note_locked(left)
        return [each.claim for each in stored if self._book.holds(each)]

    async def check(self, subscribed: Subscribed) -> None:
        """Lose the claims whose stored position was moved by others, as by a reset, and those that
        may have skipped a message that is now to be delivered.
        """
        held, earlier = self._book.all, subscribed.earlier
        if not self._find_moved(subscribed) and all(each.earlier is earlier for each in held):
            return
        async with self._turn:  # no commit is in progress, so the positions can be compared
            found = await self._stored.read()
            moved = self._find_moved(found)
            reset = [each for each in self._book.all if not each.leave_out(found.earlier)]
        self.lose(moved, "their stored positions were moved by others")
        self.lose(reset, "the subscription was reset")

    def _find_moved(self, subscribed: Subscribed) -> list[HeldSlot]:
        if self._stored.are_elsewhere:
            return []
        now = subscribed.positions
        return [held for held in self._book.all if not held.accepts(now[held.slot])]

    # -- locks -------------------------------------------------------------------------------------

    async def keep(self) -> None:
        """Extend the locks, and end the claims of lost locks. Raises the errors of the locks."""
        names = {slot_lock(self._name, each.slot): each for each in self._book.all}
        asked_at = self._clock.now()
        kept: Collection[str] = ()
        locked: Collection[str] = ()
        if isinstance(self._locks, SkipsLocked):
            kept, locked = await self._locks.try_keep(names)
        elif names:
            kept = await self._locks.keep(list(names))
        for name, each in names.items():
            if name in kept:
                each.keep(asked_at)
        lost = [each for name, each in names.items() if name not in {*kept, *locked}]
        self.lose(lost, "their locks were lost")
        self._note_locked([names[each] for each in locked])

    def _note_locked(self, slots: Collection[HeldSlot]) -> None:
        if slots and not self.has_locked:
            log_safely(logger, logging.WARNING, _LOCKED, self._name, _names(slots))
        self.has_locked = bool(slots)

    def lose_unkept(self) -> None:
        """End the claims whose locks may have expired."""
        kept = self.in_time(self._book.all)
        unkept = [each for each in self._book.all if each not in kept]
        self.lose(unkept, "their locks could not be extended in time")

    async def unlock_ended(self) -> None:
        """Release the locks of claims that have ended. Raises the errors of the locks."""
        async with self._turn:
            await self._unlock_ended()

    async def _unlock_ended(self) -> None:
        if ending := [slot for slot in self._ending if slot not in self._book]:
            await self._locks.unlock([slot_lock(self._name, slot) for slot in ending])
            self._ending.difference_update(ending)

    async def close(self) -> None:
        """End all claims without a commit, and release the locks."""
        self.end(self._book.all)
        try:
            seconds = close_within(UNLOCK_WITHIN)
            async with self._clock.timeout_at(self._clock.now() + seconds):
                await self.unlock_ended()
        except Exception as error:
            log_safely(logger, logging.INFO, _NOT_UNLOCKED, self._name, for_log(error))


def _names(slots: Collection[HeldSlot]) -> str:
    return named([held.slot for held in slots])
