"""Jobs that an event waits for after the end of its turn."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..results import Incomplete

if TYPE_CHECKING:
    from .context import EventContext


class Pending(Incomplete):
    """A job that begins when there is room. Its subclasses may have attributes, unlike other
    results.
    """

    __slots__ = ()
    __setattr__ = object.__setattr__

    def submit(self, context: EventContext) -> bool:
        """Begin it; return false if it waits for room. In that case `Events.has_room` is called
        later.
        """
        raise NotImplementedError

    def withdraw(self) -> None:
        """Stop it, because its event is left."""
        raise NotImplementedError

    def __str__(self) -> str:
        """Return its place, for operators."""
        raise NotImplementedError
