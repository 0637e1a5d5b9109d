"""What operators see of a consumer: its statistics, its standstills, its lag, its health.

A sampler looks once per period at what is busy and where the positions are. It reports stalls and
the crash windows that have been passed. Handling a message costs nothing here.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from .._core.clock import LoopClock, wait_until
from .._core.errors import ClosedError
from .._core.say import say
from .._core.told import for_log
from .explain import Explainer
from .health import Health
from .lag import lags_of
from .samples import Samples
from .stalls import StallDetector
from .standing import busy
from .stats import stats_of

if TYPE_CHECKING:
    from .._core.source import TopicPartition
    from .explain import Explanation
    from .lag import Lag
    from .parts import Parts
    from .stats import ConsumerStats

PERIOD = 1.0
"""The most seconds between two samples."""
BLOCKED_AFTER = 30.0
"""Seconds without a sample after which the event loop counts as blocked."""
LAG_WITHIN = 10.0
"""The most seconds that the source has for its ends when a stall is suspected."""

logger = logging.getLogger("penstock.consumer")

_STALLED = "%s: nothing has been settled for %.3g s although there is work\n%s"
_MOVING = "%s: messages are settled again, or there is no work any more"
_PASSED = "%s: %s"
_NO_LAG = "%s: the source did not tell its ends (%s)"


class Watch:
    """The sampler of a consumer, and its views."""

    def __init__(self, parts: Parts, stall_after: float | None) -> None:
        self._parts = parts
        self._clock = parts.commons.clock
        self._stall_after = stall_after
        self._period = PERIOD if stall_after is None else min(PERIOD, stall_after / 4)
        self._samples = Samples()
        self._stalls = StallDetector(stall_after)
        self._run = RunState()

    # -- views -------------------------------------------------------------------------------------

    def stats(self) -> ConsumerStats:
        """Take a snapshot, in any thread."""
        parts = self._parts
        deliveries = parts.claims.windows.total(parts.claims)
        return stats_of(parts, deliveries, is_stalled=self._stalls.is_stalled)

    def explain(self) -> Explanation:
        """Explain this moment, in the loop's thread."""
        now = self._clock.now()
        self._sample(now)
        is_running = self._run.is_going
        return Explainer(self._parts, self._samples, now, is_running=is_running).explanation()

    async def lag(self) -> dict[TopicPartition, Lag]:
        """Ask the source for its ends, and compare. Raises the source's error."""
        return await lags_of(self._parts)

    def health(self) -> Health:
        """Readiness and liveness, in any thread."""
        name = self._parts.commons.name
        stalled = None
        if self._stalls.is_stalled:
            stalled = f"{name} has work and settles nothing"
        return Health(self._why_not_ready(), self._why_not_alive(), stalled)

    async def wait_ready(self) -> None:
        """Suspend until the consumer is ready. Raises `ClosedError` if it ends before."""
        signals, ending = self._parts.commons.signals, self._parts.ending
        while (reason := self._why_not_ready()) is not None:
            if ending.is_begun or self._run.is_over:
                raise ClosedError(f"{self._parts.commons.name} will not be ready: {reason}")
            await wait_until(self._clock, math.inf, signals.state, signals.claims, ending.signal)

    # -- the sampler -------------------------------------------------------------------------------

    async def run(self) -> None:
        """Sample until cancelled."""
        self._run.begin(asyncio.get_running_loop())
        self._parts.commons.signals.state.fire()
        try:
            while True:
                await self._look()
                await self._clock.sleep(self._period)
        finally:
            self._report_passed()
            self._run.end()
            self._parts.commons.signals.state.fire()
