"""The stores of the partitions of one run: opened before the first turn, dropped with the claim."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..._core.errors import ConfigError

if TYPE_CHECKING:
    from ..._core.source import TopicPartition
    from ..claim import Claim
    from .state import StateBackend, StateStore


class Stores:
    """The stores that are open."""

    def __init__(self, backend: StateBackend | None) -> None:
        self._backend = backend
        self._open: dict[TopicPartition, tuple[Claim, StateStore]] = {}

    async def prepare(self, claim: Claim) -> None:
        """Open the store of a claim whose turn begins; no effect a second time. Raises what the backend
        raises: the event is tried again then.
        """
        if self._backend is None:
            return
        known = self._open.get(claim.partition)
        if known is not None and known[0] is claim:
            return
        if known is not None:
            self._backend.close(claim.partition)
        self._open[claim.partition] = claim, await self._backend.open(claim.partition)

    def of(self, partition: TopicPartition) -> StateStore:
        """The store of a partition. Raises `ConfigError` without a backend."""
        if self._backend is None:
            raise ConfigError("there is no state: pass state=... to run_events")
        return self._open[partition][1]

    def close_ended(self) -> None:
        """Drop the stores of claims that have ended."""
        for partition, (claim, _) in [*self._open.items()]:
            if claim.is_closed:
                self._drop(partition)

    def close(self) -> None:
        """Drop all stores."""
        for partition in [*self._open]:
            self._drop(partition)

    def _drop(self, partition: TopicPartition) -> None:
        del self._open[partition]
        if self._backend is not None:
            self._backend.close(partition)
