"""The argument of an event's handler: the event and its partition's store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from .event_turn import EventTurn

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from ..._core.source import TopicPartition
    from ..message import Message
    from .state import StateStore

Finalise: TypeAlias = "Callable[[EventContext], Awaitable[object]]"
"""Runs in the order of the event, and returns the same results as a handler."""


class Completes(Protocol):
    """Interface that completes the events of a consumer."""

    def job_complete(self, context: EventContext, finalise: Finalise) -> bool:
        """See `EventContext.job_complete`."""
        ...

    def forward(self, context: EventContext, item: object) -> None:
        """See `EventContext.forward`."""

    def store_of(self, partition: TopicPartition) -> StateStore:
        """Return the store of a partition."""
        ...


class EventContext:
    """One event with its data, until it is complete.

    Its methods and the store may only be used in the event's turn, that is, in its handler and
    finalisers. These never run concurrently with others of the same partition.
    """

    __slots__ = ("_events", "message", "turn", "user_data")

    def __init__(self, message: Message, events: Completes) -> None:
        self.message = message
        self.user_data: Any = None
        """Arbitrary data that the handler stores for finalisers."""
        self._events = events
        self.turn = EventTurn(message)
        """The state of the event's turn, for the consumer."""

    @property
    def partition(self) -> TopicPartition:
        """The partition of the event."""
        return self.message.claim.partition

    @property
    def store(self) -> StateStore:
        """The state of the partition. Raises `ConfigError` for a consumer without state."""
        return self._events.store_of(self.partition)

    @property
    def value(self) -> Any:
        """The event's value."""
        return self.message.value

    @property
    def key(self) -> Any:
        """The record's own key."""
        return self.message.key

    def job_complete(self, finalise: Finalise) -> bool:
        """Complete an event whose handler has returned, or is about to return, `Incomplete()`.

        `finalise(context)` runs in the event's order, and returns the same results as a handler:
        `None` if the event is now complete, `Incomplete()` if it is completed later. Call it in the
        loop's thread, in any task. Returns false, with no effect, if the event was already
        completed or its claim has ended; in the latter case the next owner of its partition handles
        it again.
        """
        return self._events.job_complete(self, finalise)

    def forward(self, item: Any) -> None:
        """Forward an item when this turn ends. A turn that fails forwards nothing. Does not
        suspend.

        With `run_events(forward_to=batcher)` the item is submitted to the batcher. The event is
        complete, and the position passes it, only when the item has arrived: at least once. With a
        `KafkaState` the item is a `KafkaRecord`, sent in the transaction of the state and the
        position: readers of committed records see it once. Raises `ConfigError` without either, for
        an item that the state cannot send, and outside the event's turn.
        """
        self.turn.check_forwards()
        self._events.forward(self, item)

    def __repr__(self) -> str:
        return f"EventContext({self.message!r})"
