"""Stores whose changes are kept together with the position of their partition.

1. The changes of a turn count together, or not at all: a turn that fails leaves the store as it was.
2. They are stored with the first position that passes their event, in one transaction: after a crash
   the state is that of the events before the position, and the others run again.
3. So such a claim has no map of events that are complete beyond its position.
4. Once many changes wait for that, no later event of the partition begins until they are stored.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from ..results import Nak, Terminate, ToDeadLetter
from .state import StateBackend

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from ..._core.source import Source, TopicPartition

_FAILED = (Nak, Terminate, ToDeadLetter)


@runtime_checkable
class TurnStore(Protocol):
    """The state of one partition, changed in turns."""

    def begin_turn(self, offset: int | None) -> None:
        """The turn of the event with this offset begins; `None`: of an interjection."""

    def end_turn(self, *, counts: bool) -> None:
        """It ends; its changes are undone unless it `counts`."""

    def bound(self, offset: int) -> int:
        """The last position up to `offset` that can be stored with the changes before it."""
        ...

    def owes(self, offset: int) -> bool:
        """Whether changes wait to be stored with this position."""
        ...

    @property
    def is_crowded(self) -> bool:
        """Whether too many changes wait to be stored."""
        ...

    @property
    def lost(self) -> Exception | None:
        """Why nothing of it can be stored any more."""
        ...


@runtime_checkable
class PositionedBackend(StateBackend, Protocol):
    """A backend of `TurnStore`s."""

    def check_source(self, source: Source) -> None:
        """Raise `ConfigError` for a source that does not leave its positions to this backend."""

    def progress(self, partition: TopicPartition) -> str:
        """How far the reading of a state has come, for operators; empty while none is read."""
        ...


async def in_turn(store: TurnStore, offset: int | None, turn: Awaitable[object]) -> object:
    """Run a turn whose changes count if it does not fail; return its result."""
    store.begin_turn(offset)
    counts = False
    try:
        result = await turn
        counts = not isinstance(result, _FAILED) and not (result is None and _is_cut())
    finally:
        store.end_turn(counts=counts)
    return result


def _is_cut() -> bool:
    """Whether this turn was cut: one that answers `None` all the same has failed."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
