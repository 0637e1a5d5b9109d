"""Checks a subscription regularly: pauses, this process's share, and the slots to claim.

1. With locks that count the members, each process has an even share of all slots, including idle
   ones. Otherwise a process has a fixed number of slots at a time, preferably those with unread
   messages.
2. Slots are claimed in the order of the append times of their oldest unread messages, without
   waiting for any of them. A process that cannot claim all together first claims those that it has
   not served in this round. The round ends when none of them is free, so that a slot that another
   process keeps does not delay it.
3. When the share shrinks, slots are released in proportion: the same fraction of the slots with
   unread messages as of the idle ones. The slots with the oldest messages are kept. With a fixed
   number, a slot is also released if others have unread messages and it is idle or was held for a
   while; the other slot is locked before that.
4. A stored position beyond the last one of the log shows that the log is an older copy of the one
   that was read. This is an error, since new messages would be taken for read ones.
5. Messages that retention deleted before they were handled are reported once per process: at its
   first check, and whenever there are more.
"""

from __future__ import annotations

import asyncio
import logging
import math
from typing import TYPE_CHECKING

from ..._core.logs import log_safely, named
from ..._core.subscriptions import CountsMembers

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ..._core.clock import Clock
    from ..._core.source import Position, Troubles
    from ..._core.subscriptions import Subscribed, SubscriptionLocks
    from .holding import SlotHolder
    from .log_reader import LogReader
    from .options import StreamOptions
    from .slots import HeldSlot, SlotBook, StoredSlots


logger = logging.getLogger("sluicegate.postgres")

CHUNK = 64
"""Maximum number of locks to request by one call, in addition to the required ones."""
REVOKE_WITHIN = 30.0
"""Seconds to drain a claim when its slot is released; the consumer's `drain` if it is shorter."""

_PAUSED = "the subscription is paused: `sluicegate stream resume` continues it"
_PAUSED_SLOTS = "the slots %s are paused: `sluicegate stream resume` continues them"
_MISSED = (
    "%s: %d messages were deleted before the subscription had handled them, and are never delivered "
    "(%d in all, counted in subscription_slot.missed)"
)
STANDS_AFTER = 5.0
"""Seconds without progress although there may be messages beyond the horizon."""
_STANDS = (
    "the log is read up to position %d of %d: an open transaction that appends holds the horizon "
    "(%s); messages behind it are delivered when it ends"
)


class Balancer:
    """Decides which slots this process holds."""

    def __init__(
        self,
        options: StreamOptions,
        log: LogReader,
        book: SlotBook,
        stored: StoredSlots,
        holder: SlotHolder,
        *,
        locks: SubscriptionLocks,
        troubles: Troubles,
        clock: Clock,
    ) -> None:
        self._options = options
        self._locks = locks
        self._troubles = troubles
        self._clock = clock
        self._log = log
        self._book = book
        self._stored = stored
        self._holder = holder
        self._served: set[int] = set()
        self._giving_up: asyncio.Task[None] | None = None
        self._missed = 0
        self.is_paused = False
        self.paused: frozenset[int] = frozenset()
        """The slots that are currently not read."""
        self.earlier: frozenset[int] = frozenset()
        """The positions that are not delivered."""

    async def balance(self) -> float:
        """Check once; return the seconds until the next check. Raises client errors, the
        state and the locks, and `ConfigError` for errors that repetition cannot resolve.
        """
        subscribed = await self._stored.read()
        horizon = await self._log.horizon()
        self._stored.check(subscribed.positions, horizon.last)
        await self._holder.check(subscribed)
        self.earlier = subscribed.earlier
        self._take_pauses(subscribed)
        self._take_missed(subscribed.missed)
        await self._holder.unlock_ended()
        if (given := self._giving_up) is None or given.done():
            self._giving_up = None
            if given is not None:
                given.result()  # its error is raised once; the next call continues
            await self._share(subscribed.positions, horizon.position)
        options = self._options
        waits = isinstance(self._locks, CountsMembers) and len(self._book)
        return options.check_every if waits else options.poll

    def _take_pauses(self, subscribed: Subscribed) -> None:
        self.is_paused, self.paused = subscribed.is_paused, subscribed.paused_slots
        told = None
        if self.is_paused:
            told = _PAUSED
        elif paused := self.paused.intersection(self._options.selection.slots):
            told = _PAUSED_SLOTS % named(sorted(paused))
        self._troubles.note("pause", told)

    def _take_missed(self, missed: int) -> None:
        if missed > self._missed:
            name = self._options.subscription
            log_safely(logger, logging.ERROR, _MISSED, name, missed - self._missed, missed)
        self._missed = missed

    async def _share(self, positions: Mapping[int, Position], horizon: int) -> None:
        locks, options = self._locks, self._options
        if not isinstance(locks, CountsMembers):
            await self._take_turns(positions, horizon, options.slots_at_once)
            return
        slots = len(options.selection.slots)
        share = math.ceil(slots / await locks.members(options.subscription))
        room = share - len(self._book)
        if room < 0:
            self._give_up(_surplus(*await self._by_need(positions, horizon), -room))
        elif room:
            free = self._free(positions)
            await self._claim(await self._order(free, horizon, room), room)

    async def _take_turns(
        self, positions: Mapping[int, Position], horizon: int, share: int
    ) -> None:
        """Claim slots with unread messages, in place of idle ones and of slots held for long."""
        free = self._free(positions)
        unread = await self._log.oldest(free, horizon, self.earlier)
        room = share - len(self._book)
        if len(unread) <= room:
            idle = [slot for slot in free if slot not in unread]
            await self._claim([*self._in_rounds(unread), *idle], room)
            return
        needed, idle_ones = await self._by_need(positions, horizon)
        now, hold = self._clock.now(), self._options.hold
        long = sorted((each for each in needed if now - each.since >= hold), key=_since)
        over = [*idle_ones, *long]
        claimed = await self._claim(self._in_rounds(unread), room + len(over))
        self._give_up(over[: max(0, claimed - room)])

    def _free(self, positions: Mapping[int, Position]) -> dict[int, int]:
        """The slots that this process does not hold, and their positions."""
        return {
            slot: positions[slot].offset
            for slot in self._options.selection.slots
            if slot not in self._book and slot not in self.paused
        }

    async def _by_need(
        self, positions: Mapping[int, Position], horizon: int
    ) -> tuple[list[HeldSlot], list[HeldSlot]]:
        """Return the held slots with unread messages, the oldest first, and the idle ones."""
        held = self._book.all
        cursors = {each.slot: positions[each.slot].offset for each in held}
        unread = await self._log.oldest(cursors, horizon, self.earlier)
        needed = [each for each in held if each.slot in unread]
        needed.sort(key=lambda each: unread[each.slot])
        return needed, [each for each in held if each.slot not in unread]

    async def _order(self, free: Mapping[int, int], horizon: int, room: int) -> list[int]:
        """Order free slots: those with the oldest unread messages first, idle ones last."""
        if room >= len(free):
            return list(free)
        wanted = self._in_rounds(await self._log.oldest(free, horizon, self.earlier))
        return [*wanted, *(slot for slot in free if slot not in wanted)]

    def _in_rounds(self, unread: Mapping[int, float]) -> list[int]:
        """Order unread slots: those not served in this round first, then by age."""
        return sorted(unread, key=lambda slot: (slot in self._served, unread[slot]))

    async def _claim(self, wanted: Sequence[int], room: int) -> int:
        """Claim free slots in this order, up to `room`; return their number."""
        claimed, size = 0, max(CHUNK, room)
        for start in range(0, len(wanted), size):
            if claimed < room:
                chunk = wanted[start : start + size]
                claimed += await self._holder.claim(chunk, room - claimed)
        served = {slot for slot in wanted if slot in self._book}
        if self._served.issuperset(served):
            self._served.clear()  # none of the unserved slots is free: begin the next round
        self._served |= served
        return claimed

    def _give_up(self, slots: Sequence[HeldSlot]) -> None:
        if slots:
            giving_up = self._holder.give_up(slots, REVOKE_WITHIN)
            self._giving_up = asyncio.get_running_loop().create_task(giving_up)

    async def close(self) -> None:
        """Cancel the release of slots in progress."""
        if self._giving_up is not None:
            self._giving_up.cancel()
            await asyncio.wait([self._giving_up])


def _since(held: HeldSlot) -> float:
    return held.since


def _surplus(needed: Sequence[HeldSlot], idle: Sequence[HeldSlot], count: int) -> list[HeldSlot]:
    """Choose `count` of these slots, in proportion."""
    of_needed = round(len(needed) * count / (len(needed) + len(idle)))
    return [*idle[: count - of_needed], *needed[len(needed) - of_needed :]]


class StandingHorizon:
    """Detects a horizon that is held back by an open transaction."""

    def __init__(self, log: LogReader, troubles: Troubles, clock: Clock) -> None:
        self._log = log
        self._clock = clock
        self._troubles = troubles
        self._at = -1
        self._since = 0.0

    async def check(self) -> None:
        """Check once. Raises client errors."""
        position, last, _ = await self._log.horizon()
        now = self._clock.now()
        if position != self._at or position >= last:
            self._at, self._since = position, now
            self._troubles.note("horizon", None)
        elif now - self._since >= STANDS_AFTER:
            appender = await self._log.oldest_appender()
            told = _STANDS % (position, last, appender) if appender else None
            self._troubles.note("horizon", told)
