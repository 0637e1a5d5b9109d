"""An open source: the calls of the consumer, and the background tasks.

1. `_run` begins the subscription, then checks it regularly. An unreachable server is reported as a
   problem, and tried again. The next fetch raises an error that a retry cannot resolve.
2. `_keep` extends the locks independently, since a check may wait; `_watch` ends the claims if the
   locks were not extended in time.
3. A fetch delivers only while the locks are known to be held.
4. After a failover the log may be shorter than it was read, and grow again with other messages at
   the same positions. Another server is therefore confirmed before messages are delivered or
   positions stored: claims whose stored position is another one end, and all claims if the log does
   not have the last message that was read.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from ..._core.clock import wait_until
from ..._core.errors import ConfigError
from ..._core.logs import for_log, log_safely
from ..._core.runtime.cuts import end_if_cut
from ..records.source import FAILED, RETRY_TO, Serving
from .balancing import Balancer as Looker
from .balancing import StandingHorizon
from .holding import SlotHolder
from .log_reader import ServerReplaced, StreamDelivery
from .slots import SlotBook, StoredSlots

if TYPE_CHECKING:
    from collections.abc import Collection, Coroutine, Mapping, Sequence

    from ..._core.clock import Clock
    from ..._core.source import ClaimHost, Fetched, Position, PositionStore, SourceClaim, Unread
    from ..._core.subscriptions import SubscriptionLocks, SubscriptionState
    from .log_reader import LogReader
    from .options import StreamOptions

logger = logging.getLogger("sluicegate.postgres")

_SHORTER = (
    "%s: the message at position %d, which was read, is not in the log of the server that answers now "
    "(the last position is %d): the previous server has lost the last messages, unless this one was "
    "deleted; all slots begin again at their stored positions"
)
COUNT_TO = 256_000
"""Maximum number of messages to count for a lag: 1,000 in each of 256 slots."""


class OpenStream(Serving):
    """The subscription of one process while its source is open."""

    def __init__(
        self,
        options: StreamOptions,
        log: LogReader,
        host: ClaimHost,
        clock: Clock,
        *,
        state: SubscriptionState,
        locks: SubscriptionLocks,
        store: PositionStore | None,
    ) -> None:
        super().__init__(options.subscription, host, clock)
        self._options = options
        self._state = state
        self._locks = locks
        self._log = log
        self._book = SlotBook()
        self._stored = StoredSlots(
            options.subscription, options.selection, self._last_position, state, store
        )
        self._holder = SlotHolder(
            options, self._book, self._stored, locks=locks, host=host, clock=clock
        )
        self._balancer = Looker(
            options,
            log,
            self._book,
            self._stored,
            self._holder,
            locks=locks,
            troubles=self._troubles,
            clock=clock,
        )
        self._delivery = StreamDelivery(log, self._book)
        self._standing = StandingHorizon(log, self._troubles, clock)
        self._confirming = asyncio.Lock()
        self._has_begun = False
        self._over: int | None = None
        """The last position to deliver, for a source that ends."""

    def _background(self) -> Sequence[Coroutine[None, None, None]]:
        return self._run(), self._keep(), self._watch()

    async def _close(self) -> None:
        await self._balancer.close()
        await self._holder.close()

    # -- the tasks ---------------------------------------------------------------------------------

    async def _begin(self) -> None:
        """Store the start of the subscription unless it exists, and prepare the fetches."""
        options, state = self._options, self._state
        await self._log.check()
        if await state.read(options.subscription) is None:
            start = await options.start.begin(self._log, options.selection.text)
            await state.initialize(options.subscription, start)
        positions = (await self._stored.read()).positions
        horizon = await self._log.horizon()
        self._stored.check(positions, horizon.last)
        self._delivery.accept(horizon.server)
        if options.ends:
            self._over = horizon.position
        self._has_begun = True

    async def _last_position(self) -> int:
        return (await self._log.horizon()).last

    async def _run(self) -> None:
        clock, poll = self._clock, self._options.poll
        delay, is_ready = poll, False
        while True:
            if not self._has_begun:
                await self._attempt("opening", self._begin())
            heard = self.news.count
            seconds = await self._check() if self._has_begun else None
            if seconds is not None and not is_ready:
                self._host.assigned({})  # without a slot the member waits, and is ready
                is_ready = True
            delay = poll if seconds is not None else min(RETRY_TO, 2 * delay)
            news = () if seconds is None or len(self._book) else (self.news,)
            if news and self.news.count != heard:
                continue
            await wait_until(clock, clock.now() + (delay if seconds is None else seconds), *news)

    async def _check(self) -> float | None:
        """Check the subscription; return the seconds until the next check, `None` after an error."""
        found: list[float] = []

        async def check() -> None:
            found.append(await self._balancer.balance())
            await self._standing.check()

        return found[0] if await self._attempt("checking the subscription", check()) else None

    async def _keep(self) -> None:
        clock, every = self._clock, self._locks.keep_every
        is_kept = True
        while every is not None:
            are_all = is_kept and not self._holder.has_locked
            await clock.sleep(every if are_all else min(every / 4, 1.0))
            is_kept = await self._attempt("extending the locks", self._holder.keep())

    async def _watch(self) -> None:
        """End the claims when their locks may have expired, even while a `keep` has no response."""
        clock, every = self._clock, self._locks.keep_every
        while every is not None:
            await wait_until(clock, min(self._holder.kept_until, clock.now() + every))
            self._holder.lose_unkept()

    # -- the calls of the consumer -----------------------------------------------------------------

    async def fetch(self, claims: Sequence[SourceClaim], most: int) -> list[Fetched] | None:
        """Deliver messages of these claims; `None` at the end of a source that ends."""
        clock, poll = self._clock, self._options.poll
        delay = poll
        while True:
            if self._failure is not None:
                raise self._failure
            heard = self.news.count
            try:
                found = await self._deliver(claims, most)
                self._troubles.note("reading", None)
                if found:
                    return found
                if self._over is not None and await self._is_over(self._over):
                    return None
                if self.news.count != heard:  # beyond the horizon that was read
                    continue
                delay = poll
            except ConfigError:
                raise
            except Exception as error:
                self._delivery.rewind()
                end_if_cut(error)
                told = FAILED % (self._name, "reading the log", for_log(error))
                self._troubles.note("reading", told)
                delay = min(RETRY_TO, 2 * delay)
            await wait_until(clock, clock.now() + delay, self.news)

    async def _deliver(self, claims: Sequence[SourceClaim], most: int) -> list[Fetched]:
        if self._balancer.is_paused:
            return []
        paused, kept = self._balancer.paused, self._holder.in_time(self._book.among(claims))
        wanted = [held for held in kept if held.slot not in paused]
        try:
            return await self._delivery.fetch(wanted, most, self._host.room_bytes)
        except ServerReplaced:
            await self._confirm()
            return []

    async def _confirm(self) -> None:
        """Find out whether the log is the one that was read, if another server answers."""
        async with self._confirming:
            delivery = self._delivery
            server = await self._log.server()
            if server == delivery.server:
                return
            delivery.rewind()
            await self._holder.check(await self._stored.read())
            seen = delivery.seen
            is_same_log = seen is None or await self._log.has(seen)
            if seen is not None and not is_same_log:
                told = (self._name, seen.position, (await self._log.horizon()).last)
                log_safely(logger, logging.ERROR, _SHORTER, *told)
                self._holder.lose(self._book.all, "their messages may have been lost")
            delivery.accept(server, is_same_log=is_same_log)

    async def _is_over(self, last: int) -> bool:
        """Whether each message up to `last` is delivered, settled elsewhere, or in a paused slot."""
        found = await self._stored.read()
        if found.is_paused:
            return True
        if any(
            each.cursor <= last and each.slot not in found.paused_slots for each in self._book.all
        ):
            return False
        others = {
            slot: found.positions[slot].offset
            for slot in self._options.selection.slots
            if slot not in self._book and slot not in found.paused_slots
        }
        return not await self._log.oldest(others, last, found.earlier)

    async def commit(self, positions: Mapping[SourceClaim, Position]) -> list[SourceClaim]:
        """Store the positions of open claims."""
        await self._confirm()
        return await self._holder.commit(positions)

    def replace(self, claim: SourceClaim) -> None:
        """End an open claim; the next check claims its slot again, unless another process does."""
        self._holder.lose(self._book.among([claim]), "its position in the destination was lost")

    async def ends(self, claims: Collection[SourceClaim]) -> dict[SourceClaim, int]:
        """Return the offset after the last message of each claim's slot."""
        held = self._book.among(claims)
        found = await self._log.ends([each.slot for each in held])
        return {each.claim: max(found[each.slot], each.stored.offset) for each in held}

    async def lag(self, positions: Mapping[SourceClaim, int]) -> dict[SourceClaim, Unread]:
        """Count the readable messages of each claim's slot from these offsets on, up to a limit."""
        held = {each: positions[each.claim] for each in self._book.among(positions)}
        if not held:
            return {}
        horizon = (await self._log.horizon()).position
        cursors = {each.slot: at for each, at in held.items()}
        most = COUNT_TO // len(held)
        found = await self._log.unread(cursors, horizon, self._balancer.earlier, most)
        return {each.claim: found[each.slot] for each in held}
