"""Events whose handler has ended before they are complete, and their way back into their order. Pure.

1. An event that is *out* has no turn: what follows it in its lane is handled. It keeps its place in the
   window, and its position is not passed.
2. Once its job is done it comes in again, in front of what waits in its lane, and behind what came in
   before it: finalisers run in the order in which the jobs were done, exclusive with handlers.
3. A lane may be *held*, while an event waits for room for its job: no later event begins, but finalisers
   do, so that jobs which are done make room.
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
    """The events that are out, and those that are to be finalised."""

    def __init__(self, ready: deque[Message]) -> None:
        self.out: set[Message] = set()
        self._ready = ready
        self.contexts: dict[Message, EventContext] = {}
        """Of the events that are not complete, from their handler on."""
        self.inside: set[Message] = set()
        """Those that wait for their turn to be finalised."""
        self._waiting: dict[tuple[int, Hashable], deque[Message]] = {}
        """The same by lane, in order; the first one is in front of its lane, the others only here."""

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def has(self, message: Message) -> bool:
        """Whether an event is out, or waits to be finalised."""
        return message in self.out or message in self.inside

    def behind(self) -> Iterator[Message]:
        """Those that wait behind another one that is to be finalised."""
        for queue in tuple(self._waiting.values()):
            yield from tuple(queue)[1:]

    def length_behind(self, message: Message) -> int:
        """How many messages wait in the lane of a message, with these."""
        lanes, key = message.claim.lanes, message.lane_key
        queue = self._waiting.get((id(lanes), key))
        return lanes.length(key) + (0 if queue is None else len(queue) - 1)

    def come_in(self, message: Message) -> None:
        """An event that was out is to be finalised."""
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
        """The turn of an event begins that was to be finalised; the next one follows it."""
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
        """Begin the turn of the next event to be finalised, if its lane is held and none is going."""
        lane, queue = lanes.lane(key), self._waiting.get((id(lanes), key))
        if lane is None or queue is None or not lane.held or lane.going:
            return
        if lane.first is queue[0]:
            self._ready += lanes.take_held(key, 1)

    def drop_after(self, message: Message) -> list[Message]:
        """Remove what is later than a message in its lane, and of its claim; return it."""
        claim, key = message.claim, message.lane_key

        def is_later(other: Message) -> bool:
            return other.claim is claim and other.lane_key == key and other.index > message.index

        return [*claim.lanes.drop_where(is_later), *self.forget(is_later)]

    def forget(self, is_dead: Callable[[Message], bool]) -> list[Message]:
        """Forget those that have been dropped from the lanes; return those that were in no lane."""
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
