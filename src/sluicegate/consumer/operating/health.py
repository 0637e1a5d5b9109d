"""Readiness, liveness, and lag.

| a consumer | ready | alive |
|---|---|---|
| is not open, or does not run yet | no | yes |
| runs, without an assignment so far | no | yes |
| runs, and its source has assigned partitions with their positions (perhaps none) | yes | yes |
| has a source that reports a problem | no | yes |
| drains | no | yes |
| has failed | no | no |
| has ended | no | no |
| has an event loop that is blocked | as before | no |

A stall affects neither: it may be caused by an unavailable destination, which a restart does not
cure.

The lag is sampled for observers, since a scrape cannot wait for the source. A failed sample leaves
no lag, since an old value would look like a current one.
"""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..._core.clock import LoopClock, wait_until
from ..._core.errors import ClosedError
from ..._core.logs import for_log, log_safely
from ..._core.source import CountsLag

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Mapping

    from ..._core.source import TopicPartition
    from ..progress.claim import Claim
    from .places import Places, Standing

BLOCKED_AFTER = 30.0
"""Seconds without a heartbeat after which the event loop counts as blocked."""

WITHIN = 10.0
"""Seconds within which the source must return the ends of its partitions."""
logger = logging.getLogger("sluicegate.consumer")
_FAILED = "%s: the lag is unknown, since the source did not return its ends (%s)"


@dataclass(frozen=True, slots=True)
class Health:
    """Why a consumer is not ready, not alive, or stalled; `None` for each that does not apply."""

    not_ready: str | None
    not_alive: str | None
    stalled: str | None

    @property
    def is_ready(self) -> bool:
        """Whether records are fetched and handled."""
        return self.not_ready is None

    @property
    def is_alive(self) -> bool:
        """Whether the consumer can continue; otherwise it needs a restart."""
        return self.not_alive is None


NOT_OPEN = Health("it is not open", None, None)


class Heartbeat:
    """The heartbeat of a consumer's event loop. Thread-safe to read."""

    def __init__(self) -> None:
        self._clock: LoopClock | None = None
        self._last = 0.0

    def begin(self, loop: asyncio.AbstractEventLoop) -> None:
        """Start the heartbeat on this loop."""
        self._clock = LoopClock(loop)
        self.beat()

    def beat(self) -> None:
        """Record a heartbeat."""
        if self._clock is not None:
            self._last = self._clock.now()

    def end(self) -> None:
        """Stop the heartbeat."""
        self._clock = None

    @property
    def is_beating(self) -> bool:
        """Whether the heartbeat has started and not stopped."""
        return self._clock is not None

    @property
    def late(self) -> float:
        """Seconds since the last heartbeat; 0 before the first and after the end."""
        clock = self._clock
        return 0.0 if clock is None else clock.now() - self._last


def why_not_ready(places: Places, heart: Heartbeat) -> str | None:
    """Return why nothing is fetched and handled; `None` if the consumer is ready."""
    if places.run.is_ending:
        return "it drains" if heart.is_beating else "it has ended"
    if not heart.is_beating:
        return "it does not run yet"
    if (trouble := places.claims.trouble) is not None:
        return f"its source cannot deliver: {trouble}"
    if not places.claims.was_assigned:
        return "its source has not assigned partitions yet"
    if places.claims.unread():
        return "it reads the parked keys, or the state, of its partitions"
    return None


def why_not_alive(places: Places, heart: Heartbeat) -> str | None:
    """Return why the consumer needs a restart; `None` if it is alive."""
    if (error := places.run.error) is not None:
        return f"it has failed: {for_log(error)}"
    if places.run.is_ending and not heart.is_beating:
        return "it has ended"
    if (late := heart.late) > BLOCKED_AFTER:
        return f"its event loop has been blocked for {late:.0f} s"
    return None


async def wait_ready(places: Places, heart: Heartbeat) -> None:
    """Suspend until the consumer is ready. Raises `ClosedError` if it ends first."""
    run = places.run
    while (reason := why_not_ready(places, heart)) is not None:
        if run.is_ending:
            raise ClosedError(f"{run.name} will not be ready: {reason}")
        await wait_until(run.clock, math.inf, run.readiness, run.assignment, run.ending)


@dataclass(frozen=True, slots=True)
class Lag:
    """The lag of a partition's position."""

    messages: int
    """Records from the position on, including settled ones beyond it. Most sources count offsets:
    the end of the partition minus the position, including records removed by compaction or a
    transaction. `PostgresStreamSource` counts readable messages.
    """
    seconds: float | None
    """Age of the oldest unfinished record by its timestamp, in wall time; 0 without a lag; `None`
    if that record has not been delivered yet or has no timestamp. `PostgresStreamSource` reports it
    before the delivery too, by the server's clock.
    """


async def lags_of(places: Places) -> dict[TopicPartition, Lag]:
    """Return the lag of each claim that is open both before and after the query of the source."""
    asked = [claim for claim in places.claims if not claim.is_closing]
    source = places.source
    if isinstance(source, CountsLag):
        unread = await source.lag({claim: claim.tracker.seen_position() for claim in asked})
        return {
            claim.partition: Lag(*unread[claim])
            for claim in asked
            if not claim.is_closed and claim in unread
        }
    ends = await source.ends(asked)
    claims = [claim for claim in asked if not claim.is_closed and claim in ends]
    oldest = places.oldest_of(claims)
    wall = places.run.clock.wall_time()
    return {claim.partition: _lag(claim, ends[claim], oldest.get(claim), wall) for claim in claims}


def _lag(claim: Claim, end: int, oldest: Standing | None, wall: float) -> Lag:
    messages = max(0, end - claim.tracker.seen_position())
    if messages == 0:
        return Lag(0, 0.0)
    stamp = 0 if oldest is None else oldest.message.timestamp
    return Lag(messages, max(0.0, wall - stamp / 1000) if stamp > 0 else None)


class LagSampler:
    """Sampler of the lag, at the interval that the observers set."""

    def __init__(self, places: Places) -> None:
        self._places = places
        self._every = places.run.observers.lag_every
        self._lags: Mapping[TopicPartition, Lag] = {}

    @property
    def is_wanted(self) -> bool:
        """Whether an observer uses the lag."""
        return self._every is not None

    def latest(self) -> dict[TopicPartition, Lag]:
        """Return the last sample for the partitions that this process still owns. Thread-safe."""
        owned, lags = self._places.claims, self._lags
        return {
            claim.partition: lags[claim.partition] for claim in owned if claim.partition in lags
        }

    async def run(self) -> None:
        """Sample until cancelled."""
        clock = self._places.run.clock
        assert self._every is not None
        try:
            while True:
                self._lags = await self._sample()
                await clock.sleep(self._every)
        finally:
            self._lags = {}

    async def _sample(self) -> Mapping[TopicPartition, Lag]:
        clock, name = self._places.run.clock, self._places.run.name
        try:
            async with clock.timeout_at(clock.now() + WITHIN):
                return await lags_of(self._places)
        except Exception as error:  # the source reports its problem itself
            log_safely(logger, logging.DEBUG, _FAILED, name, for_log(error))
            return {}
