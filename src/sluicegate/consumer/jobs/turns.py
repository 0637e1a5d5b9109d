"""Stores whose changes are saved together with the position of their partition.

1. The changes of a turn are atomic: a turn that fails leaves the store unchanged.
2. They are saved with the first position that passes their event, in one transaction. After a crash
   the state is that of the events before the position, and the other events run again.
3. Such a claim therefore has no map of completed events beyond its position.
4. When too many changes wait to be stored, no later event of the partition begins until they are
   stored.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from ..results import Nak, Terminate, ToDeadLetter
from .state import StateBackend

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from ..._core.source import Source, TopicPartition

FAILED = (Nak, Terminate, ToDeadLetter)
"""Results of a turn that has failed, and changes nothing."""


@runtime_checkable
class TurnStore(Protocol):
    """The state of one partition, changed in turns."""

    def begin_turn(self, offset: int | None) -> None:
        """Begin the turn of the event with this offset; `None` for an interjection."""

    def end_turn(self, *, counts: bool) -> None:
        """End the turn; its changes are undone unless it `counts`."""

    def bound(self, offset: int) -> int:
        """Return the last position up to `offset` that can be stored with the changes before it."""
        ...

    def owes(self, offset: int) -> bool:
        """Return whether changes wait to be stored with this position."""
        ...

    @property
    def is_crowded(self) -> bool:
        """Whether too many changes wait to be stored."""
        ...

    @property
    def lost(self) -> Exception | None:
        """Why its changes can no longer be saved; `None` if they can."""
        ...


@runtime_checkable
class PositionedBackend(StateBackend, Protocol):
    """A backend of `TurnStore`s."""

    def check_source(self, source: Source) -> None:
        """Raise `ConfigError` for a source that does not leave its positions to this backend."""

    def progress(self, partition: TopicPartition) -> str:
        """Return the progress of reading a state, for operators; empty while none is being read."""
        ...


async def in_turn(store: TurnStore, offset: int | None, turn: Awaitable[object]) -> object:
    """Run a turn whose changes count unless it fails; return its result."""
    store.begin_turn(offset)
    counts = False
    try:
        result = await turn
        counts = not isinstance(result, FAILED) and not (result is None and _is_cut())
    finally:
        store.end_turn(counts=counts)
    return result


def _is_cut() -> bool:
    """Return whether this turn was cut; if it returned `None` nevertheless, it has failed."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
