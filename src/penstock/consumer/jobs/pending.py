"""What an event waits for that has given its turn up."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..results import Incomplete

if TYPE_CHECKING:
    from .context import EventContext


class Pending(Incomplete):
    """A job that is to begin once there is room."""

    def submit(self, context: EventContext) -> bool:
        """Begin it; return false if it waits for room: then `Events.has_room` is called later."""
        raise NotImplementedError

    def withdraw(self) -> None:
        """Stop it: its event is left."""
        raise NotImplementedError

    def __str__(self) -> str:
        """Where it is, for operators."""
        raise NotImplementedError
