"""Commits of positions, with maps of the records settled beyond them.

1. A commit is due every `every` seconds, after `after` settled messages, on demand, and at the end
   of a drain. It contains only claims with new positions. Messages are counted once per
   `LOOK_EVERY` seconds; if `after` is below `SMALL`, they are counted whenever messages are
   settled, which costs more.
2. Position and map form one snapshot, taken without suspending. One commit is in flight at a time;
   a failed commit is not repeated, but followed by one with a newer snapshot.
3. A closing claim is committed by its source during a revoke, and by the committer during the
   drain.
4. With short claims, or a source that settles each record, a commit is due as soon as a message is
   settled. Messages settled during a commit share the next one. A claim that stays open although
   its position was not stored, as of a locked row, is committed again with the next messages, or
   `AGAIN_AFTER` seconds later.
5. A source that settles each record keeps the reported records if its commit fails: the next commit
   names all claims.
"""

from __future__ import annotations

import asyncio
import logging
import math
from typing import TYPE_CHECKING, cast

from .._core.clock import wait_until
from .._core.logs import for_log, log_safely
from .._core.runtime.cuts import end_if_cut

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .._core.source import Position, Source, SourceClaim
    from .claim import Claim
    from .claims import Claims
    from .commons import Commons
    from .schedule import Schedule

logger = logging.getLogger("sluicegate.consumer")

LOOK_EVERY = 1.0
SMALL = 1000
AGAIN_AFTER = 0.25

_FAILED = "%s: a commit failed (%s); the next one follows in %.3g s"


class Committer:
    """Commits the positions of open claims."""

    def __init__(
        self,
        source: Source,
        claims: Claims,
        schedule: Schedule,
        commons: Commons,
        *,
        every: float,
        after: int | None,
    ) -> None:
        traits = source.traits
        self._at_once = traits.short_claims or traits.settles_each
        self._source = source
        self._claims = claims
        self._clock = commons.clock
        self._schedule = schedule
        self._name = commons.name
        self._observers = commons.observers
        self._every = every
        self._after = math.inf if after is None else after
        self._lock = asyncio.Lock()
        self._settled = commons.signals.settled
        self._committed = 0
        self._is_unstored = False
        """Whether the last commit did not store the position of a claim that is still open."""
        self.commits = 0
        self.failures = 0
        self.error: BaseException | None = None
        """The error of the last commit; `None` if it succeeded."""

    async def run(self) -> None:
        """Commit whenever a commit is due, until cancelled."""
        while True:
            await self._wait_until_due()
            try:
                await self.commit()
            except Exception as error:
                end_if_cut(error)
                told = for_log(error)
                log_safely(logger, logging.WARNING, _FAILED, self._name, told, self._every)

    async def _wait_until_due(self) -> None:
        now = self._clock.now()
        until = now + self._every
        if self._at_once and self.error is None:
            if self._is_unstored:
                await wait_until(self._clock, now + AGAIN_AFTER, self._settled)
            elif not self._has_news():
                await wait_until(self._clock, math.inf, self._settled)
            return
        news = (self._settled,) if self._after < SMALL else ()
        look_every = LOOK_EVERY if SMALL <= self._after < math.inf else self._every
        while now < until:
            await wait_until(self._clock, min(until, now + look_every), *news)
            if self._schedule.acknowledged - self._committed >= self._after:
                return
            now = self._clock.now()

    async def commit(self, *, closing: bool = False) -> None:
        """Commit new positions. Raises the source's error; a later commit uses newer positions.

        Suspends until the source has answered. A cancelled commit may have been stored.
        """
        async with self._lock:
            new = self._new(closing=closing)
            if not new:
                return
            try:
                stored = await self._source.commit(new)
            except Exception as error:
                self.failures += 1
                self.error = error
                self._tell(new, error)
                raise
            self.commits += 1
            self.error = None
            for claim in stored:
                cast("Claim", claim).stored(new[claim])
            left = new.keys() - set(stored)
            self._is_unstored = any(not cast("Claim", claim).is_closing for claim in left)
            self._tell({claim: new[claim] for claim in stored})

    def _has_news(self) -> bool:
        """Return whether a message was settled in an open claim since its last report."""
        return any(each.has_news for each in self._claims if not each.is_closing)

    def _tell(
        self, new: Mapping[SourceClaim, Position], error: BaseException | None = None
    ) -> None:
        if self._observers:
            offsets = {claim.partition: position.offset for claim, position in new.items()}
            self._observers.tell(lambda seen: seen.on_committed(self._name, offsets, error))

    def _new(self, *, closing: bool) -> dict[SourceClaim, Position]:
        self._committed = self._schedule.acknowledged
        new: dict[SourceClaim, Position] = {}
        for claim in self._claims:
            if claim.is_closed or (claim.is_closing and not closing):
                continue
            is_owed = claim.tracker.tells_each and (self.error is not None or claim.has_news)
            if self._at_once and not (is_owed or claim.has_news):
                continue
            snapshot = claim.snapshot()
            if is_owed or claim.owes(snapshot):
                new[claim] = snapshot
        return new
