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
    from collections.abc import Collection, Hashable

    from .._core.order.lanes import Lanes
    from .message import Message


class CompletedJobs:
    """The events that are out, and those that are to be finalised."""

    def __init__(self, ready: deque[Message]) -> None:
        self.out: set[Message] = set()
        self._ready = ready
        self._waiting: dict[tuple[int, Hashable], deque[Message]] = {}
        """Those that wait for their turn, by lane; the first one is in front of its lane."""

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def come_in(self, message: Message) -> None:
        """An event that was out is to be finalised."""
        self.out.remove(message)
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
        queue.popleft()
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
        lane = lanes.lane(key)
        if lane is not None and lane.held and not lane.going and (id(lanes), key) in self._waiting:
            self._ready += lanes.take_held(key, 1)

    def forget(self, dead: Collection[int]) -> None:
        """Forget what waits of these claims, given by their ids; it has been dropped."""
        for where, queue in list(self._waiting.items()):
            left = deque([each for each in queue if id(each.claim) not in dead])
            if not left:
                del self._waiting[where]
                continue
            self._waiting[where] = left
            if left[0] is not queue[0]:
                self._place(left[0].claim.lanes, where[1], left[0])
