"""The stored positions of a member: the group's offsets, or those of a position store.

1. The positions of a store take precedence over the group's offsets, which may be from a consumer
   without a store, or copies.
2. With a store the group's offsets are copies, for tools that show the lag. A failed copy is only
   logged. A store that keeps its positions as the group's offsets has no copies: a late copy could
   move them back.
3. A store with state marks the copies. It is told of the offsets of partitions without a position,
   and refuses a marked one: the store was emptied, or is another one.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from ..._core.errors import ConfigError
from ..._core.logs import for_log, log_safely
from ..._core.source import Position
from ..client.session import KafkaError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from ..._core.source import PositionStore, TopicPartition
    from ..client.options import MemberOptions
    from ..client.session import Session

logger = logging.getLogger("sluicegate.kafka")

_OTHERS = (
    "the group %r has different offsets of %s at the source (%s) and at the destination (%s): both "
    "have to be on one cluster"
)
_NOT_COPIED = "%s: positions are stored, but not copied to the group's offsets (%s)"


class StoredPositions:
    """The stored positions of one session."""

    def __init__(
        self, session: Session, options: MemberOptions, store: PositionStore | None
    ) -> None:
        self._session = session
        self._options = options
        self._store = store

    @property
    def are_elsewhere(self) -> bool:
        """Whether the positions are in a store."""
        return self._store is not None

    async def read(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, Position]:
        """Take over these partitions, and return the stored positions of those that have one.

        Raises the errors of aiokafka and of the store, `TimeoutError`, and `ConfigError` for a
        store on another cluster.
        """
        taken = {} if self._store is None else dict(await self._store.take(partitions))
        async with asyncio.timeout(self._options.commit_timeout):
            committed = await self._session.committed(partitions)
        if self._store is None:
            return committed
        if self._store.keeps_group_offsets:
            self._check_same(committed, taken)
            return committed | taken
        others = {each: at for each, at in committed.items() if each not in taken}
        self._store.begins_at_offsets(others)
        marked = self._store.copy_metadata
        return taken | {each: _without(at, marked) for each, at in others.items()}

    def _check_same(
        self,
        committed: Mapping[TopicPartition, Position],
        taken: Mapping[TopicPartition, Position],
    ) -> None:
        """Raise `ConfigError` if the store sees other offsets of the group than the source."""
        for each in committed.keys() | taken.keys():
            here, there = committed.get(each), taken.get(each)
            if _offset(here) != _offset(there):
                raise ConfigError(_OTHERS % (self._options.group, each, _at(here), _at(there)))

    async def store(
        self, positions: Mapping[TopicPartition, Position]
    ) -> Collection[TopicPartition]:
        """Store positions; return those known to be stored. Raises the errors of `read`."""
        if self._store is None:
            await self._session.commit(positions)
            return list(positions)
        stored = await self._store.store(positions)
        if stored and not self._store.keeps_group_offsets:
            await self._copy({each: positions[each] for each in stored}, self._store.copy_metadata)
        return stored

    async def _copy(self, positions: Mapping[TopicPartition, Position], metadata: str) -> None:
        copies = {
            each: Position(at.offset, metadata or at.metadata) for each, at in positions.items()
        }
        try:
            await self._session.commit(copies)
        except KafkaError as error:
            log_safely(logger, logging.DEBUG, _NOT_COPIED, self._options.group, for_log(error))

    def release(self, partitions: Collection[TopicPartition]) -> None:
        """Release these partitions."""
        if self._store is not None and partitions:
            self._store.release(partitions)


def _without(position: Position, metadata: str) -> Position:
    """Return a position without this metadata, which is not a map of offsets."""
    return Position(position.offset) if position.metadata == metadata else position


def _offset(position: Position | None) -> int | None:
    return None if position is None else position.offset


def _at(position: Position | None) -> str:
    return "none" if position is None else str(position.offset)
