"""Jobs that an event waits for after the end of its turn."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..._core.errors import ConfigError
from ..results import Incomplete
from .turns import FAILED

if TYPE_CHECKING:
    from ..message import Message
    from .context import EventContext
    from .event_turn import TurnResult


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

    @property
    def what(self) -> str:
        """A description, for errors."""
        raise NotImplementedError

    def __str__(self) -> str:
        """Return its place, for operators."""
        raise NotImplementedError


def check_returned(message: Message, scheduled: TurnResult | None, result: object) -> None:
    """Raise `ConfigError` if a turn has not returned the job that it has scheduled, so that the job
    would be lost, or has returned one of another turn or event.
    """
    if isinstance(result, Pending):
        if result is not scheduled:
            rule = "was scheduled in another turn, or with the context of another event"
            raise ConfigError(f"the result of {message!r}, {result.what}, {rule}")
    elif scheduled is not None and not isinstance(result, FAILED):
        rule = "return the result of schedule() or add(), otherwise it never runs"
        told = f"{message!r} has {scheduled.what}, but returned {result!r:.100}"
        raise ConfigError(f"{told}; {rule}")
