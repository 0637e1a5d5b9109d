"""Events whose handlers have ended before the events are complete, and their return to the order.
Pure.

1. An event that is *out* has no turn: later events of its lane are handled. It keeps its place in
   the window, and the position does not pass it.
2. When its job is done, it returns to the front of its lane, behind the events that returned before
   it: finalisers run in the order in which the jobs were done, and exclude handlers.
3. A lane is *held* while an event waits for room for its job: no later event begins, but finalisers
   do, so that completed jobs make room.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections import deque
    from collections.abc import Callable, Hashable

    from .._core.order.lanes import Lanes
    from .jobs.context import EventContext
    from .message import Message


class CompletedJobs:
    """The events that are out, and those that wait to be finalised."""

    def __init__(self, ready: deque[Message]) -> None:
        self.out: set[Message] = set()
        self._ready = ready
        self.contexts: dict[Message, EventContext] = {}
        """Contexts of incomplete events, from the start of their handler on."""
        self.inside: set[Message] = set()
        """Events that wait for their turn to be finalised, ready or ahead in their lanes."""

    def __bool__(self) -> bool:
        return bool(self.inside)

    def has(self, message: Message) -> bool:
        """Return whether an event is out, or waits to be finalised."""
        return message in self.out or message in self.inside

    def come_in(self, message: Message) -> bool:
        """Queue an event that was out to be finalised; return whether its turn may begin now."""
        self.out.remove(message)
        self.inside.add(message)
        return self._place(message.claim.lanes, message.lane_key, message)

    def begin(self, message: Message) -> None:
        """Begin the turn of an event to be finalised; no effect if it is another try."""
        self.inside.discard(message)

    def _place(self, lanes: Lanes[Message], key: Hashable, message: Message) -> bool:
        if key not in lanes.active:
            lanes.active.add(key)
            self._ready.append(message)
            return True
        lanes.put_ahead(message)
        return self.go_on(lanes, key)

    def go_on(self, lanes: Lanes[Message], key: Hashable) -> bool:
        """Begin the turn of the next event to be finalised, if its lane is held and has no running
        turn; return whether it begins.
        """
        lane = lanes.lane(key)
        if lane is None or not lane.held or lane.going or lane.first not in self.inside:
            return False
        self._ready += lanes.take_held(key, 1)
        return True

    def drop_after(self, message: Message) -> list[Message]:
        """Remove and return the later messages of the same lane and claim."""
        claim, key = message.claim, message.lane_key

        def is_later(other: Message) -> bool:
            return other.claim is claim and other.lane_key == key and other.index > message.index

        self.forget(is_later)
        return claim.lanes.drop_where(is_later)

    def forget(self, is_dead: Callable[[Message], bool]) -> None:
        """Forget events to be finalised that leave with their claims."""
        self.inside = {message for message in self.inside if not is_dead(message)}
