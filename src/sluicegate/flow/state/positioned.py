"""The common base of states that are stored together with the positions of a source."""

from __future__ import annotations

from abc import abstractmethod
from functools import partial
from typing import TYPE_CHECKING

from ..._core.checks import bad
from ..._core.clock import LOOP_CLOCK
from ..._core.errors import PositionLost
from ..._core.opening import Openable
from ..._core.source import Source, TransactionalSource
from .keeping import StatePositions

if TYPE_CHECKING:
    from ..._core.source import TopicPartition
    from ...consumer.jobs.state import StateStore
    from .changes import Stored
    from .keeper import StateKeeper
    from .store import KeptStore


class PositionedState(Openable):
    """Base of states whose changes are stored with positions: a `PositionedBackend`."""

    _kept: StatePositions | None = None
    _source: Source | None = None
    _fitting = ""
    """Sources that can leave their positions to it, for error messages."""

    def __init__(self) -> None:
        self._stores: dict[TopicPartition, KeptStore] = {}

    @abstractmethod
    def _keeper(self, source: TransactionalSource) -> StateKeeper:
        """Create the keeper for the states of a source.

        Raises `ConfigError` for an unsuitable source, and `ClosedError` unless this is open.
        """

    @abstractmethod
    def _made(
        self, partition: TopicPartition, entries: dict[str, Stored], offset: int
    ) -> KeptStore:
        """Create the store of a partition, with the entries before this offset."""

    def attach(self, source: Source) -> Source:
        """Return the source for the consumer, with its positions in this state. May be called once.

        Raises `ConfigError` for a source that cannot leave its positions to this state, and
        `ClosedError` unless the state is open.
        """
        if not isinstance(source, TransactionalSource):
            rule = f"must be a source that can leave its positions to the state: {self._fitting}"
            raise bad("source", source, rule)
        keeper = self._keeper(source)
        if self._kept is not None:
            raise bad(
                "source", source, "must be the only source of a state; create a state for each"
            )
        self._kept = StatePositions(keeper)
        self._source = source.with_positions(self._kept)
        return self._source

    # -- the interface for the consumer ------------------------------------------------------------

    def check_source(self, source: Source) -> None:
        """Raise `ConfigError` unless the source has its positions in this state."""
        if source is not self._source or self._kept is None:
            rule = "has to store the positions of the consumer's source: Consumer(state.attach(source))"
            raise bad("state", self, rule)

    def progress(self, partition: TopicPartition) -> str:
        """Return the progress of a restore, for operators; empty if there is none."""
        return "" if self._kept is None else self._kept.progress(partition)

    async def open(self, partition: TopicPartition) -> StateStore:
        """Read the state of a partition. Suspends. Raises `PositionLost`, and the server's errors."""
        if self._kept is None:
            raise PositionLost(f"{partition} is not owned")
        made = partial(self._made, partition)
        store = await self._kept.restore(partition, made, LOOP_CLOCK)
        self._stores[partition] = store
        return store

    def close(self, partition: TopicPartition) -> None:
        """Forget the state of a partition; its position no longer moves."""
        store = self._stores.pop(partition, None)
        if store is not None and self._kept is not None:
            self._kept.ended(partition, store)
