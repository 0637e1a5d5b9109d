"""Background tasks for events whose state is stored with the position.

1. The state of a new claim is read before anything is fetched for it; failed reads are repeated.
2. When too many changes of a partition wait to be stored, its lane is held: finalisers still begin,
   but no later event does. The events inside complete and are committed, and then the lane
   continues.
3. If a claim has lost its position and its source does not end it within `LOST_MOST` seconds, it is
   replaced by a new claim, which reads the state again: the loss was an error, such as a
   transaction that exceeded a time limit. With a source that cannot replace it, the run ends.
"""

from __future__ import annotations

import asyncio
import logging
import math
from functools import partial
from typing import TYPE_CHECKING

from ..._core.classify import caused
from ..._core.clock import wait_until
from ..._core.errors import PositionLost
from ..._core.logs import for_log, log_safely
from ..._core.retry_policy import RetryPolicy
from ..._core.runtime.cuts import end_if_cut
from ..._core.source import ReplacesClaims
from ..insisting import Insisting

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from ..claim import Claim
    from ..engine import Engine
    from .events import Events

logger = logging.getLogger("sluicegate.consumer")

LOOK_EVERY = 1.0
LOST_MOST = 10.0
"""Seconds: longer than a live group member takes to learn of a rebalance."""

_REPLACED = (
    "%s: %s has lost its position (%s), but is still assigned here: its state is read again, and its "
    "events run again from the stored position"
)
_FAILED = "%s: a commit failed (%s), and changes of state wait for it; next try in %.3g s"


class StateKeeping:
    """The background tasks of a run whose state is stored with the position."""

    def __init__(self, engine: Engine, events: Events) -> None:
        self._engine = engine
        self._events = events
        self._stores = events.stores
        self._clock = engine.commons.clock
        self._insisting = Insisting(engine.commons, RetryPolicy().backoff)
        self._reading: dict[Claim, asyncio.Task[None]] = {}
        self._lost_at: dict[Claim, float] = {}

    def begin(self) -> None:
        """Prevent fetching for claims whose state has not been read."""
        self._engine.claims.read_first()

    def tasks(self) -> list[Coroutine[object, object, None]]:
        """Return the coroutines to run until cancelled."""
        return [self._read(), self._relieve(), self._watch()]

    # -- reading -----------------------------------------------------------------------------------

    async def _read(self) -> None:
        claims, changed = self._engine.claims, self._engine.commons.signals.claims
        try:
            while True:
                for claim in claims.unread():
                    if claim not in self._reading:
                        task = asyncio.get_running_loop().create_task(self._read_of(claim))
                        self._reading[claim] = task
                        task.add_done_callback(self._read_ended)
                await wait_until(self._clock, math.inf, changed)
        finally:
            for task in self._reading.values():
                task.cancel()

    async def _read_of(self, claim: Claim) -> None:
        prepare, what = (
            partial(self._stores.prepare, claim),
            f"reading the state of {claim.partition}",
        )
        try:
            if await self._insisting.on(prepare, what, claim):
                self._engine.claims.read(claim)
        finally:
            self._reading.pop(claim, None)

    def _read_ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._engine.ending.begin(error)

    # -- too many changes --------------------------------------------------------------------------

    async def _relieve(self) -> None:
        signals, crowded = self._engine.commons.signals, self._events.crowded
        while True:
            while not crowded:
                await wait_until(self._clock, math.inf, crowded.began)
            try:
                await self._engine.committer.commit()
            except Exception as error:
                end_if_cut(error)
                name = self._engine.commons.name
                log_safely(logger, logging.WARNING, _FAILED, name, for_log(error), LOOK_EVERY)
                await self._clock.sleep(LOOK_EVERY)
            for message in crowded.take_free():
                self._events.are_stored(message)
            if crowded:
                until = self._clock.now() + LOOK_EVERY
                await wait_until(self._clock, until, signals.settled, signals.claims)

    # -- lost positions ----------------------------------------------------------------------------

    async def _watch(self) -> None:
        while True:
            await self._clock.sleep(LOOK_EVERY)
            now, lost = self._clock.now(), self._stores.lost()
            self._lost_at = {claim: self._lost_at.get(claim, now) for claim in lost}
            for claim, since in self._lost_at.items():
                if now - since >= LOST_MOST:
                    self._lost_at[claim] = now
                    self._replace(claim, lost[claim])

    def _replace(self, claim: Claim, error: Exception) -> None:
        source, name = self._engine.source, self._engine.commons.name
        if isinstance(source, ReplacesClaims):
            log_safely(logger, logging.WARNING, _REPLACED, name, claim.partition, for_log(error))
            source.replace(claim)
            return
        text = f"{claim.partition} is still assigned here, but its position is lost"
        self._engine.ending.begin(caused(PositionLost(f"{text} ({error})"), error))
