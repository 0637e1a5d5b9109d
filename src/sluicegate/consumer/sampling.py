"""The sampler of a consumer: ages, stalls and crash windows, checked once per period.

It costs nothing per message. While the consumer is empty, the source is queried for its ends four
times per `stall_after`, so that a consumer that fetches nothing is detected too.
"""

from __future__ import annotations

import asyncio
import logging
import math
from typing import TYPE_CHECKING

from .._core.logs import for_log, log_safely
from .explain import Explainer
from .health import Heartbeat, why_not_ready
from .lag import lags_of
from .samples import Samples
from .stalls import StallDetector
from .standing import busy

if TYPE_CHECKING:
    from .claim import Claim
    from .explain import Explanation
    from .message import Message
    from .parts import Parts

PERIOD = 1.0
"""Maximum time between two samples, in seconds."""
LOOKS = 4
"""Minimum number of samples per `stall_after`."""
ENDS_WITHIN = 10.0
"""Seconds within which the source must return its ends."""

logger = logging.getLogger("sluicegate.consumer")

_STALLED = "%s: nothing has been settled for %.3g s although there is work\n%s"
_MOVES = "%s: no longer stalled"
_PASSED = "%s: %s"
_NO_ENDS = "%s: the source did not return its ends (%s)"


class Sampler:
    """A periodic sampler of a consumer; reports stalls, and crash windows that were passed."""

    def __init__(self, parts: Parts, stall_after: float | None) -> None:
        self._parts = parts
        self._clock = parts.commons.clock
        self._name = parts.commons.name
        self._period = PERIOD if stall_after is None else min(PERIOD, stall_after / LOOKS)
        self._ask_every = math.inf if stall_after is None else stall_after / LOOKS
        self._ask_at = -math.inf
        self._has_backlog = False
        self._interjected = 0
        self._samples = Samples()
        self._was_ready = False
        self.stalls = StallDetector(stall_after)
        self.heart = Heartbeat()

    async def run(self) -> None:
        """Sample until cancelled."""
        self.heart.begin(asyncio.get_running_loop())
        self._parts.commons.signals.state.fire()
        try:
            while True:
                self.heart.beat()
                self._sample()
                self._look_for_readiness()
                await self._look_for_stall()
                await self._clock.sleep(self._period)
        finally:
            self._sample()
            self.heart.end()

    def stood(self, claim: Claim) -> float | None:
        """Return how long the position of a claim had not moved at the last sample, in seconds.
        Thread-safe.
        """
        stood = self._samples.stood(claim, self._samples.taken_at)
        return None if stood is None else max(0.0, stood)

    def explanation(self) -> Explanation:
        """Explain the current state, with ages from the samples."""
        now = self._sample()
        return Explainer(self._parts, self._samples, now, self.heart).explanation()

    def busy_since(self) -> dict[Message, float]:
        """Return the time at which each busy message was first seen in its state, in the clock's
        seconds.
        """
        self._sample()
        return self._samples.since()

    def _sample(self) -> float:
        parts, now = self._parts, self._clock.now()
        self._samples.take(now, busy(parts), parts.claims)
        for window in parts.claims.windows.passed(parts.claims):
            log_safely(logger, logging.INFO, _PASSED, self._name, window)
        return now

    def _look_for_readiness(self) -> None:
        is_ready = why_not_ready(self._parts, self.heart) is None
        if is_ready != self._was_ready:
            self._was_ready = is_ready
            if is_ready or not self._parts.ending.is_begun:
                self._parts.commons.tell_state("ready" if is_ready else "not_ready")

    # -- stalls ------------------------------------------------------------------------------------

    async def _look_for_stall(self) -> None:
        if self._ask_every == math.inf:
            return
        has_work = await self._has_work()
        now = self._clock.now()
        is_draining = self._parts.ending.is_begun
        change = self.stalls.look(now, self._settled(), has_work=has_work and not is_draining)
        if change == "stalled":
            idle = self.stalls.idle_for(now)
            log_safely(logger, logging.WARNING, _STALLED, self._name, idle, self.explanation())
            self._parts.commons.tell_state("stalled")
        elif change == "moves":
            self._parts.commons.tell_state("moving")
            log_safely(logger, logging.INFO, _MOVES, self._name)

    async def _has_work(self) -> bool:
        """Return whether messages are inside, or the source has more."""
        inside = self._inside()
        if inside or self._settled() != self.stalls.settled:
            self._has_backlog, self._ask_at = False, -math.inf
            return inside > 0
        now = self._clock.now()
        if now >= self._ask_at:
            self._ask_at = now + self._ask_every
            self._has_backlog = await self._lags()
        return self._has_backlog

    def _inside(self) -> int:
        """Return the number of messages inside, without interjections as long as these end: they
        are progress, but not that of records.
        """
        inside, jobs = self._parts.schedule.window.messages, self._parts.settler.jobs
        if jobs is None or jobs.interjections.ended == self._interjected:
            return inside
        self._interjected = jobs.interjections.ended
        return max(0, inside - jobs.interjections.inside)

    async def _lags(self) -> bool:
        """Return whether a partition that may be fetched from is behind its end."""
        claims = self._parts.claims
        try:
            async with self._clock.timeout_at(self._clock.now() + ENDS_WITHIN):
                lags = await lags_of(self._parts)
        except Exception as error:  # the source reports its trouble itself
            log_safely(logger, logging.DEBUG, _NO_ENDS, self._name, for_log(error))
            return self._has_backlog
        fetched = [claim.partition for claim in claims if not claims.is_paused(claim)]
        return any(lags[partition].messages for partition in fetched if partition in lags)

    def _settled(self) -> int:
        """Return the number of messages settled in any way."""
        counts = self._parts.commons.counts
        others = counts["dead_lettered"] + counts["parked"] + counts["unparked"]
        others += counts["terminated"]
        return self._parts.schedule.acknowledged + others + counts["skipped"]
