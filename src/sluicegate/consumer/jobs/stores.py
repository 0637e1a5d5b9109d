"""The stores of one run's partitions: opened before the first turn, dropped with the claim.

1. A store whose changes are saved with the position is opened before anything is fetched for its
   claim. A failed opening is retried, and does not count as a failed try of an event.
2. A store that has lost its position gets no further turns; see `state_keeping.py`.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from ..._core.errors import ConfigError, PositionLost
from ..._core.logs import for_log
from .turns import PositionedBackend, TurnStore

if TYPE_CHECKING:
    from ..._core.source import TopicPartition
    from ..claim import Claim
    from .state import StateBackend, StateStore


class Stores:
    """The open stores."""

    def __init__(self, backend: StateBackend | None) -> None:
        self._backend = backend
        self._open: dict[TopicPartition, tuple[Claim, StateStore]] = {}
        self._turns: dict[Claim, TurnStore] = {}
        self._opening: dict[TopicPartition, asyncio.Lock] = {}
        self._failures: dict[Claim, Exception] = {}
        """The last error of each store that could not be opened."""

    @property
    def are_any(self) -> bool:
        """Whether there is state."""
        return self._backend is not None

    @property
    def are_positioned(self) -> bool:
        """Whether the state is stored together with the positions."""
        return isinstance(self._backend, PositionedBackend)

    async def prepare(self, claim: Claim) -> TurnStore | None:
        """Open the store of a claim whose turn begins; no effect if it is open. Returns the store
        if it is changed in turns, else `None`. Raises any exception of the backend, and
        `PositionLost`; the event is then retried.
        """
        if self._backend is None:
            return None
        if not self._is_open(claim):
            async with self._opening.setdefault(claim.partition, asyncio.Lock()):
                if not self._is_open(claim):  # another task has opened it meanwhile
                    await self._tried(claim, self._backend)
        turns = self._turns.get(claim)
        if turns is not None and turns.lost is not None:
            raise PositionLost(str(turns.lost))
        return turns

    def _is_open(self, claim: Claim) -> bool:
        known = self._open.get(claim.partition)
        return known is not None and known[0] is claim

    async def _tried(self, claim: Claim, backend: StateBackend) -> None:
        try:
            await self._prepare(claim, backend)
        except Exception as error:
            self._failures[claim] = error
            raise
        self._failures.pop(claim, None)

    def told(self, claim: Claim) -> str:
        """Return the progress of reading a claim's state, for operators; empty if there is none."""
        told: list[str] = []
        if isinstance(self._backend, PositionedBackend):
            told.append(self._backend.progress(claim.partition))
        if (error := self._failures.get(claim)) is not None:
            told.append(f"the last try failed: {for_log(error)}")
        return "; ".join(filter(None, told))

    async def _prepare(self, claim: Claim, backend: StateBackend) -> None:
        if claim.partition in self._open:
            self._drop(claim.partition)
        store = await backend.open(claim.partition)
        self._open[claim.partition] = claim, store
        if isinstance(store, TurnStore):
            claim.keep_with(store)
            self._turns[claim] = store

    def lost(self) -> dict[Claim, Exception]:
        """Return the claims that have lost their positions, with the reasons."""
        lost = {claim: store.lost for claim, store in self._turns.items()}
        failed = {
            claim: error
            for claim, error in self._failures.items()
            if isinstance(error, PositionLost)
        }
        return {
            claim: error
            for claim, error in {**failed, **lost}.items()
            if error is not None and not claim.is_closing
        }

    def of(self, partition: TopicPartition) -> StateStore:
        """Return the store of a partition. Raises `ConfigError` without a backend."""
        if self._backend is None:
            raise ConfigError("there is no state: pass state=... to run_events")
        return self._open[partition][1]

    def close_ended(self) -> None:
        """Drop the stores of claims that have ended."""
        for partition, (claim, _) in [*self._open.items()]:
            if claim.is_closed:
                self._drop(partition)
        for claim in [each for each in self._failures if each.is_closed]:
            del self._failures[claim]

    def close(self) -> None:
        """Drop all stores."""
        for partition in [*self._open]:
            self._drop(partition)

    def _drop(self, partition: TopicPartition) -> None:
        claim, _ = self._open.pop(partition)
        self._turns.pop(claim, None)
        if self._backend is not None:
            self._backend.close(partition)
