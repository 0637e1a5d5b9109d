"""What all states have in common that are stored together with the positions of a source."""

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
    """Base of the states whose changes are stored with positions: a `PositionedBackend`."""

    _kept: StatePositions | None = None
    _source: Source | None = None
    _fitting = ""
    """Sources that can leave their positions to it, for errors."""

    def __init__(self) -> None:
        self._stores: dict[TopicPartition, KeptStore] = {}

    @abstractmethod
    def _keeper(self, source: TransactionalSource) -> StateKeeper:
        """What stores the states of a source. Raises `ConfigError` for one that does not fit, and
        `ClosedError` unless this is open.
        """

    @abstractmethod
    def _made(
        self, partition: TopicPartition, entries: dict[str, Stored], offset: int
    ) -> KeptStore:
        """The store of a partition, with the entries before this offset."""

    def attach(self, source: Source) -> Source:
        """The source to give the consumer: the same one, with its positions in this state. Once.

        Raises `ConfigError` for a source that cannot leave its positions to this state, and
        `ClosedError` unless the state is open.
        """
        if not isinstance(source, TransactionalSource):
            rule = f"must be a source that can leave its positions to the state: {self._fitting}"
            raise bad("source", source, rule)
        keeper = self._keeper(source)
        if self._kept is not None:
            raise bad("source", source, "must be the only one of a state; make a state for each")
        self._kept = StatePositions(keeper)
        self._source = source.with_positions(self._kept)
        return self._source

    # -- the backend of a consumer -----------------------------------------------------------------

    def check_source(self, source: Source) -> None:
        """Raise `ConfigError` for a source that does not leave its positions to this state."""
        if source is not self._source or self._kept is None:
            rule = (
                "has to keep the positions of the consumer's source: Consumer(state.attach(source))"
            )
            raise bad("state", self, rule)

    def progress(self, partition: TopicPartition) -> str:
        """How far the reading of a state has come, for operators; empty while none is read."""
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
        """Forget the state of a partition; its position moves no more."""
        store = self._stores.pop(partition, None)
        if store is not None and self._kept is not None:
            self._kept.ended(partition, store)
