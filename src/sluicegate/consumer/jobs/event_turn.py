"""The turns of one event: a run of its handler, then of each finaliser."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from ..._core.errors import ConfigError
from .forwarded import ForwardedItems

if TYPE_CHECKING:
    from ..message import Message


class TurnResult(Protocol):
    """A job that a turn must return."""

    @property
    def what(self) -> str:
        """A description, for errors."""
        ...


class EventTurn:
    """The current turn of an event, with the job and the items that it leaves for its end."""

    __slots__ = ("_is_on", "_message", "_scheduled", "forwarded")

    def __init__(self, message: Message) -> None:
        self._message = message
        self._is_on = True
        self._scheduled: TurnResult | None = None
        self.forwarded: ForwardedItems | None = None
        """Items that all turns of the event have forwarded through a batcher."""

    def begin(self) -> None:
        """Begin the turn of a finaliser."""
        self._is_on, self._scheduled = True, None
        if self.forwarded is not None:
            self.forwarded.begin()

    def end(self) -> TurnResult | None:
        """End the turn; return the job that it has scheduled."""
        scheduled, self._scheduled = self._scheduled, None
        self._is_on = False
        return scheduled

    def check_forwards(self) -> None:
        """Raise `ConfigError` outside the event's turn."""
        if not self._is_on:
            raise ConfigError(f"forward() was called outside the turn of {self._message!r}")

    def forward(self, item: Any) -> None:
        """Submit an item at the end of this turn."""
        if self.forwarded is None:
            self.forwarded = ForwardedItems()
        self.forwarded.add(item)

    def schedule(self, job: TurnResult) -> None:
        """Require this turn to return this job.

        Raises `ConfigError` outside the event's turn, and for a second job of the turn: an event
        waits for one at a time.
        """
        if not self._is_on:
            rule = "schedule with the context of the event that is being handled"
            raise ConfigError(f"{self._message!r} cannot have {job.what} outside its turn; {rule}")
        if self._scheduled is not None:
            told = f"{self._message!r} cannot have {job.what} in addition to another job"
            rule = "schedule one job, or add one group of items, in a turn, and return the result"
            raise ConfigError(f"{told}; {rule}")
        self._scheduled = job
