"""The operators' views of a consumer: statistics, explanation, lag and health."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from .._core.clock import wait_until
from .._core.errors import ClosedError
from .health import Health, why_not_alive, why_not_ready
from .lag import lags_of
from .lag_sampling import LagSampler
from .sampling import Sampler
from .stats import stats_of

if TYPE_CHECKING:
    from .._core.source import TopicPartition
    from .explain import Explanation
    from .lag import Lag
    from .parts import Parts
    from .stats import ConsumerStats

_STALLED = "nothing has been settled for a while although there is work; see explain()"


class Views:
    """The views of an open consumer. They are read-only."""

    def __init__(self, parts: Parts, stall_after: float | None) -> None:
        self._parts = parts
        self.sampler = Sampler(parts, stall_after)
        self.lag_sampler = LagSampler(parts)

    def stats(self) -> ConsumerStats:
        """Take a snapshot. Thread-safe."""
        return stats_of(self._parts, self.sampler, self.lag_sampler.latest())

    def explain(self) -> Explanation:
        """Explain the current state. To be called in the loop's thread."""
        return self.sampler.explanation()

    async def lag(self) -> dict[TopicPartition, Lag]:
        """Compare positions with the source's ends. Raises the source's error."""
        return await lags_of(self._parts)

    def health(self) -> Health:
        """Return readiness and liveness. Thread-safe."""
        parts, heart = self._parts, self.sampler.heart
        stalled = _STALLED if self.sampler.stalls.is_stalled else None
        return Health(why_not_ready(parts, heart), why_not_alive(parts, heart), stalled)

    async def wait_ready(self) -> None:
        """Suspend until the consumer is ready. Raises `ClosedError` if it ends first."""
        parts, signals = self._parts, self._parts.commons.signals
        while (reason := why_not_ready(parts, self.sampler.heart)) is not None:
            if parts.ending.is_begun:
                raise ClosedError(f"{parts.commons.name} will not be ready: {reason}")
            await wait_until(
                parts.commons.clock, math.inf, signals.state, signals.claims, parts.ending.signal
            )
