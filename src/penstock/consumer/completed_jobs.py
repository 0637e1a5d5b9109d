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

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator

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
        """Events that wait for their turn to be finalised."""
        self._waiting: dict[tuple[int, Hashable], deque[Message]] = {}
        """The same events by lane, in order. The first of each lane is in front of the lane; the
        others are stored only here.
        """

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def has(self, message: Message) -> bool:
        """Return whether an event is out, or waits to be finalised."""
        return message in self.out or message in self.inside

    def behind(self) -> Iterator[Message]:
        """Yield the events that wait behind another event to be finalised."""
        for queue in tuple(self._waiting.values()):
            yield from tuple(queue)[1:]

    def length_behind(self, message: Message) -> int:
        """Return the number of messages behind this one in its lane, including events to be
        finalised.
        """
        lanes, key = message.claim.lanes, message.lane_key
        queue = self._waiting.get((id(lanes), key))
        return lanes.length(key) + (0 if queue is None else len(queue) - 1)

    def come_in(self, message: Message) -> None:
        """Queue an event that was out to be finalised."""
        self.out.remove(message)
        self.inside.add(message)
        lanes, key = message.claim.lanes, message.lane_key
        queue = self._waiting.get((id(lanes), key))
        if queue is not None:
            queue.append(message)
            return
        self._waiting[id(lanes), key] = deque((message,))
        self._place(lanes, key, message)

    def begin(self, message: Message) -> None:
        """Begin the turn of an event to be finalised; the next such event of its lane
        follows it.
        """
        lanes, key = message.claim.lanes, message.lane_key
        queue = self._waiting.get((id(lanes), key))
        if queue is None or queue[0] is not message:
            return  # another try
        self.inside.remove(queue.popleft())
        if queue:
            lanes.put_back(key, [queue[0]])
        else:
            del self._waiting[id(lanes), key]

    def _place(self, lanes: Lanes[Message], key: Hashable, message: Message) -> None:
        if key not in lanes.active:
            lanes.active.add(key)
            self._ready.append(message)
            return
        lanes.put_back(key, [message])
        self.go_on(lanes, key)

    def go_on(self, lanes: Lanes[Message], key: Hashable) -> None:
        """Begin the turn of the next event to be finalised, if its lane is held and has no running
        turn.
        """
        lane, queue = lanes.lane(key), self._waiting.get((id(lanes), key))
        if lane is None or queue is None or not lane.held or lane.going:
            return
        if lane.first is queue[0]:
            self._ready += lanes.take_held(key, 1)

    def drop_after(self, message: Message) -> list[Message]:
        """Remove and return the later messages of the same lane and claim."""
        claim, key = message.claim, message.lane_key

        def is_later(other: Message) -> bool:
            return other.claim is claim and other.lane_key == key and other.index > message.index

        return [*claim.lanes.drop_where(is_later), *self.forget(is_later)]

    def forget(self, is_dead: Callable[[Message], bool]) -> list[Message]:
        """Forget events that were dropped from the lanes; return those that were in no lane."""
        gone = [message for message in self.behind() if is_dead(message)]
        self.inside = {message for message in self.inside if not is_dead(message)}
        for where, queue in list(self._waiting.items()):
            left = deque([each for each in queue if not is_dead(each)])
            if not left:
                del self._waiting[where]
                continue
            self._waiting[where] = left
            if left[0] is not queue[0]:
                self._place(left[0].claim.lanes, where[1], left[0])
        return gone
