"""Sampling of a consumer's lag for observers, since a scrape cannot wait for the source.

A failed sample leaves no lag, since an old value would look like a current one.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from .._core.logs import for_log, log_safely
from .lag import lags_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .._core.source import TopicPartition
    from .lag import Lag
    from .parts import Parts

WITHIN = 10.0
"""Seconds within which the source must return the ends of its partitions."""

logger = logging.getLogger("sluicegate.consumer")

_FAILED = "%s: the lag is unknown, since the source did not return its ends (%s)"


class LagSampler:
    """Sampler of the lag, at the interval that the observers set."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._every = parts.commons.observers.lag_every
        self._lags: Mapping[TopicPartition, Lag] = {}

    @property
    def is_wanted(self) -> bool:
        """Whether an observer uses the lag."""
        return self._every is not None

    def latest(self) -> dict[TopicPartition, Lag]:
        """Return the last sample for the partitions that this process still owns. Thread-safe."""
        owned, lags = self._parts.claims, self._lags
        return {
            claim.partition: lags[claim.partition] for claim in owned if claim.partition in lags
        }

    async def run(self) -> None:
        """Sample until cancelled."""
        clock = self._parts.commons.clock
        assert self._every is not None
        try:
            while True:
                self._lags = await self._sample()
                await clock.sleep(self._every)
        finally:
            self._lags = {}

    async def _sample(self) -> Mapping[TopicPartition, Lag]:
        clock, name = self._parts.commons.clock, self._parts.commons.name
        try:
            async with clock.timeout_at(clock.now() + WITHIN):
                return await lags_of(self._parts)
        except Exception as error:  # the source reports its trouble itself
            log_safely(logger, logging.DEBUG, _FAILED, name, for_log(error))
            return {}
