"""The slots of this process: their locks, their claims, and the ends of both.

1. A slot is locked, then its position is read, then its claim begins: whatever another process did
   before is seen.
2. A claim is given up in this order: the host ends what runs, its position is stored, the claim
   ends, the lock is freed. A loss ends the claim at once, and stores nothing.
3. One attempt to store, or to begin claims, is under way at a time. So a position that is read for
   a new claim has no older attempt of this process behind it.
4. A lock is to be freed from the moment on at which it is asked for, unless a claim begins; so none
   stays behind an error. Those are freed before others are taken, and at the end.
5. Locks that could not be kept for as long as a lease may last are lost, with their claims.
"""

from __future__ import annotations

import asyncio
import logging
import math
from typing import TYPE_CHECKING

from ..._core.say import say
from ..._core.source import TopicPartition
from ..._core.subscriptions import slot_lock
from ..._core.told import for_log

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from ..._core.source import ClaimHost, Position, SourceClaim
    from ..._core.subscriptions import Subscribed
    from .parts import StreamParts
    from .slots import HeldSlot, SlotBook, SlotStart
    from .stored import StoredSlots

logger = logging.getLogger("penstock.sources.postgres_stream")

KEEPS = 3
"""Intervals without an answer after which locks are lost."""
UNLOCK_WITHIN = 2.0
"""Seconds for unlocking at the end; leases run out by themselves."""

_LOST = "%s: the slots %s are lost (%s); what was not stored of them runs again"
_NOT_STORED = "%s: the last positions of slots %s are not stored (%s); what they held runs again"
_NOT_UNLOCKED = "%s: slots could not be unlocked (%s); their locks run out"


class SlotHolder:
    """Locks and claims of one open source."""

    def __init__(
        self,
        parts: StreamParts,
        book: SlotBook,
        stored: StoredSlots,
        host: ClaimHost,
    ) -> None:
        self._name = parts.options.subscription
        self._topic = parts.options.selection.topic
        self._book = book
        self._stored = stored
        self._locks = parts.locks
        self._host = host
        self._clock = parts.clock
        self._ending: set[int] = set()
        """The slots whose locks are to be freed."""
        self._kept_at = -math.inf
        self._turn = asyncio.Lock()

    @property
    def is_kept(self) -> bool:
        """Whether the locks were kept in time, so that they cannot have run out unnoticed."""
        return self._clock.now() < self.kept_until

    @property
    def kept_until(self) -> float:
        """When the locks may have run out, unless they are kept before."""
        every = self._locks.keep_every
        return math.inf if every is None else self._kept_at + KEEPS * every

    # -- claims ------------------------------------------------------------------------------------

    async def claim(self, slots: Collection[int], most: int) -> int:
        """Claim up to `most` of these slots, as far as they are free; return their number.

        Raises what the state, its store and the locks raise; nothing is claimed then.
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
                if not self._book:
                    self._kept_at = asked_at
                self._begin(starts)
            await self._unlock_ended()
            return len(chosen)

    def _begin(self, starts: Mapping[int, SlotStart]) -> None:
        partitions = {TopicPartition(self._topic, slot): at.position for slot, at in starts.items()}
        self._book.begin(self._host.assigned(partitions), starts, self._clock.now())
        self._ending.difference_update(starts)
        if self._stored.are_elsewhere:  # the subscription's own positions are others
            for slot in starts:
                self._book.at(slot).doubt()

    async def give_up(self, slots: Sequence[HeldSlot], within: float) -> None:
        """Let what runs end, store the positions, and free the slots.

        An error of the store is logged only: what the slots held runs again elsewhere. Raises what
        the locks raise.
        """
        claims = [held.claim for held in slots]
        try:
            positions = await self._host.revoked(claims, within)
            if positions:
                await self.commit(positions)
        except Exception as error:
            told = _shown(slots)
            say(logger, logging.WARNING, _NOT_STORED, self._name, told, for_log(error))
        finally:
            self.end(slots)
        await self.unlock_ended()

    def end(self, slots: Collection[HeldSlot]) -> None:
        """End the claims of these slots, without a commit; their locks are freed later."""
        ended = self._book.end(slots)
        if ended:
            self._ending.update(held.slot for held in ended)
            self._stored.release([held.slot for held in ended])
            self._host.ended([held.claim for held in ended])

    def lose(self, slots: Collection[HeldSlot], reason: str) -> None:
        """End claims that have another owner now."""
        held = [each for each in slots if self._book.holds(each)]
        if held:
            say(logger, logging.WARNING, _LOST, self._name, _shown(held), reason)
            self.end(held)

    # -- positions ---------------------------------------------------------------------------------

    async def commit(self, positions: Mapping[SourceClaim, Position]) -> list[SourceClaim]:
        """Store the positions of claims that have not ended; return those that are stored.

        A claim whose position was refused is lost.
        """
        async with self._turn:
            held = {
                found: position
                for claim, position in positions.items()
                if (found := self._book.of(claim)) is not None
            }
            stored, refused = await self._stored.store(held) if held else ([], [])
        self.lose(refused, "their stored positions were moved")
        return [each.claim for each in stored if self._book.holds(each)]

    async def check(self, subscribed: Subscribed) -> None:
        """Lose the claims whose stored position is not this process's, as after a reset, and those
        that may have passed over a message which is left out no more.
        """
        held, earlier = self._book.all, subscribed.earlier
        if not self._moved(subscribed) and all(each.earlier is earlier for each in held):
            return
        async with self._turn:  # no commit is under way, so what is read now is compared
            found = await self._stored.read()
            moved = self._moved(found)
            reset = [each for each in self._book.all if not each.leave_out(found.earlier)]
        self.lose(moved, "their stored positions were moved")
        self.lose(reset, "the subscription was reset")

    def _moved(self, subscribed: Subscribed) -> list[HeldSlot]:
        if self._stored.are_elsewhere:
            return []
        now = subscribed.positions
        return [held for held in self._book.all if not held.accepts(now[held.slot])]

    # -- locks -------------------------------------------------------------------------------------

    async def keep(self) -> None:
        """Extend the locks; end the claims of those that are lost. Raises what the locks raise."""
        names = {slot_lock(self._name, each.slot): each for each in self._book.all}
        asked_at = self._clock.now()
        kept = await self._locks.keep(list(names)) if names else ()
        self._kept_at = max(self._kept_at, asked_at)
        lost = [each for name, each in names.items() if name not in kept]
        self.lose(lost, "their locks are")

    def lose_unkept(self) -> None:
        """End all claims if their locks may have run out."""
        if not self.is_kept:
            self.lose(self._book.all, "their locks could not be kept in time")

    async def unlock_ended(self) -> None:
        """Free the locks of claims that have ended. Raises what the locks raise."""
        async with self._turn:
            await self._unlock_ended()

    async def _unlock_ended(self) -> None:
        if ending := [slot for slot in self._ending if slot not in self._book]:
            await self._locks.unlock([slot_lock(self._name, slot) for slot in ending])
            self._ending.difference_update(ending)

    async def close(self) -> None:
        """End all claims without a commit, and free what is locked."""
        self.end(self._book.all)
        try:
            async with self._clock.timeout_at(self._clock.now() + UNLOCK_WITHIN):
                await self.unlock_ended()
        except Exception as error:
            say(logger, logging.INFO, _NOT_UNLOCKED, self._name, for_log(error))


def _shown(slots: Collection[HeldSlot]) -> str:
    return ", ".join(str(held.slot) for held in slots)
