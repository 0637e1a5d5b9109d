"""The stored positions of a subscription: its own, or those of a store, which take precedence.

1. A move states the position that it starts from. If it is refused, another process or an operator
   has moved the slot, and its claim is lost.
2. After an attempt without an answer, the position is read before the next move.
3. With a position store, the subscription's own positions are copies, for tools that show the lag,
   and for the order in which slots are claimed. A failed copy is only logged.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING

from ...._core.errors import ConfigError
from ...._core.logs import for_log, log_safely
from ...._core.source import TopicPartition
from ...._core.subscriptions import SkipsLocked
from ..messages.selection import StreamSelection
from .slots import SlotStart

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from ...._core.source import Position, PositionStore
    from ...._core.subscriptions import Subscribed, SubscriptionState
    from .selection import SelectedLog
    from .slots import HeldSlot

logger = logging.getLogger("sluicegate.postgres")

_DELETED = (
    "the subscription %r no longer exists: it was deleted while this process served it. Start "
    "the process again to create it anew"
)
_ANOTHER = (
    "the subscription %r reads %s, not %s: use another name for a subscription of another selection, "
    "or delete this one first with `sluicegate stream delete`"
)
_NOT_COPIED = "%s: positions are stored, but not copied to the subscription (%s)"


class StoredSlots:
    """Reads and moves the positions of slots."""

    def __init__(
        self,
        name: str,
        selection: SelectedLog,
        state: SubscriptionState,
        store: PositionStore | None,
    ) -> None:
        self._name = name
        self._selection = selection
        self._state = state
        self._store = store
        self._earlier: frozenset[int] = frozenset()

    @property
    def are_elsewhere(self) -> bool:
        """Whether the positions are in a store."""
        return self._store is not None

    async def read(self) -> Subscribed:
        """Read the subscription. Raises `ConfigError` if it was deleted or has a different
        selection, and the errors of the state.
        """
        found = await self._state.read(self._name)
        if found is None:
            raise ConfigError(_DELETED % self._name)
        if found.selection != self._selection.text:
            told = (self._name, _shown(found.selection), self._selection)
            raise ConfigError(_ANOTHER % told)
        if found.earlier == self._earlier:  # the same object, for fast comparisons
            return replace(found, earlier=self._earlier)
        self._earlier = found.earlier
        return found

    async def starts(self, slots: Collection[int]) -> dict[int, SlotStart]:
        """Read the starting points for claims of these locked slots."""
        partitions = {TopicPartition(self._selection.topic, slot): slot for slot in slots}
        taken: Mapping[TopicPartition, Position] = {}
        if self._store is not None:
            taken = await self._store.take(list(partitions))
        found = await self.read()
        return {
            slot: SlotStart(taken.get(each, found.positions[slot]), found.earlier)
            for each, slot in partitions.items()
        }

    async def store(
        self, positions: Mapping[HeldSlot, Position]
    ) -> tuple[list[HeldSlot], list[HeldSlot]]:
        """Store positions in one attempt; return the stored and the refused slots.

        A slot that another session has locked is neither: its position may be stored later.
        """
        if self._store is None:
            return await self._move(positions)
        wanted = {held.claim.partition: position for held, position in positions.items()}
        told = await self._store.store(wanted)
        stored = {held: at for held, at in positions.items() if held.claim.partition in told}
        try:
            if stored and not self._store.keeps_group_offsets:
                await self._move(stored)
        except Exception as error:
            log_safely(logger, logging.DEBUG, _NOT_COPIED, self._name, for_log(error))
        return list(stored), []

    async def _move(
        self, positions: Mapping[HeldSlot, Position]
    ) -> tuple[list[HeldSlot], list[HeldSlot]]:
        refused = await self._resolve([held for held in positions if held.attempts])
        moves = {
            held.slot: held.attempt(position)
            for held, position in positions.items()
            if held not in refused
        }
        done: Collection[int] = ()
        locked: Collection[int] = ()
        if isinstance(self._state, SkipsLocked):
            done, locked = await self._state.try_store(self._name, moves)
        elif moves:
            done = await self._state.store(self._name, moves)
        stored = [held for held in positions if held.slot in done]
        for held in positions:
            if held.slot in done:
                held.answered(positions[held])
            elif held.slot in locked:
                held.answered(held.stored)
        refused = [held for held in positions if held.slot not in {*done, *locked}]
        return stored, refused

    async def _resolve(self, doubtful: Collection[HeldSlot]) -> list[HeldSlot]:
        """Find out what attempts without an answer have stored; return slots moved by others."""
        if not doubtful:
            return []
        now = (await self.read()).positions
        for held in doubtful:
            if self.are_elsewhere or held.accepts(now[held.slot]):
                held.answered(now[held.slot])
        return [held for held in doubtful if held.attempts]

    def release(self, slots: Collection[int]) -> None:
        """Forget these slots, whose claims have ended."""
        if self._store is not None:
            topic = self._selection.topic
            self._store.release([TopicPartition(topic, slot) for slot in slots])


def _shown(selection: str) -> str:
    try:
        return str(StreamSelection.parsed(selection))
    except ValueError:
        return selection  # from a later release, or from a custom state
