"""Lanes held until changes of their partitions are stored. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..._core.clock import Signal

if TYPE_CHECKING:
    from ..claim import Claim
    from ..message import Message
    from .turns import TurnStore


class Crowded:
    """The lanes held until changes of their partitions are stored."""

    def __init__(self) -> None:
        self.began = Signal()
        self._held: dict[Claim, tuple[Message, TurnStore]] = {}

    def __bool__(self) -> bool:
        return bool(self._held)

    def hold(self, message: Message, store: TurnStore) -> bool:
        """Record that the lane of this event is to be held; return false if it already is."""
        if message.claim in self._held:
            return False
        self._held[message.claim] = message, store
        self.began.fire()
        return True

    def take_free(self) -> list[Message]:
        """Remove and return the events whose lanes may continue."""
        free = [
            claim
            for claim, (_, store) in self._held.items()
            if claim.is_closed or not store.is_crowded
        ]
        return [self._held.pop(claim)[0] for claim in free]
