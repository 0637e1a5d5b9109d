"""What the handler of an event is given: the event, and the store of its partition."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from .forwarded import ForwardedItems

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from ..._core.source import TopicPartition
    from ..message import Message
    from .state import StateStore

Finalise: TypeAlias = "Callable[[EventContext], Awaitable[object]]"
"""Runs in the order of the event, and returns what a handler returns."""


class Completes(Protocol):
    """Completes the events of a consumer."""

    def job_complete(self, context: EventContext, finalise: Finalise) -> bool:
        """See `EventContext.job_complete`."""
        ...

    def forward(self, context: EventContext, item: object) -> None:
        """See `EventContext.forward`."""

    def store_of(self, partition: TopicPartition) -> StateStore:
        """The store of a partition."""
        ...


class EventContext:
    """One event and what belongs to it, for as long as it is not complete.

    Its methods, and the store, are used in the event's turn only: in its handler and its finalisers, which
    never run beside another of the same partition.
    """

    __slots__ = ("_events", "forwarded", "message", "user_data")

    def __init__(self, message: Message, events: Completes) -> None:
        self.message = message
        self.user_data: Any = None
        """Anything that finalisers need of the handler."""
        self._events = events
        self.forwarded: ForwardedItems | None = None
        """What it has forwarded through a batcher."""

    @property
    def partition(self) -> TopicPartition:
        """The partition of the event."""
        return self.message.claim.partition

    @property
    def store(self) -> StateStore:
        """The state of the partition. Raises `ConfigError` for a consumer without any."""
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

        `finalise(context)` runs in the event's order, and returns what a handler returns: `None` if the
        event is complete now, `Incomplete()` if that is to follow. Called from the loop's thread, in any
        task. Returns false, with no effect, if the event was completed before or its claim has ended: it
        is handled again by the next owner of its partition then.
        """
        return self._events.job_complete(self, finalise)

    def forward(self, item: Any) -> None:
        """Send an item on when this turn ends. A turn that fails sends nothing. Does not suspend.

        With `run_events(forward_to=batcher)` the item is submitted to the batcher, and the event is
        complete, and its position passed, only once the item has arrived: at least once. With a
        `KafkaState` it is a `KafkaRecord`, and is sent in the transaction of the state and the
        position: readers of committed records see it once. Raises `ConfigError` where there is neither,
        and for anything that the state cannot send.
        """
        self._events.forward(self, item)

    def note_forwarded(self, item: Any) -> None:
        """Submit an item at the end of this turn."""
        if self.forwarded is None:
            self.forwarded = ForwardedItems()
        self.forwarded.add(item)

    def __repr__(self) -> str:
        return f"EventContext({self.message!r})"
