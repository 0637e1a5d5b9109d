"""The jobs of one scheduler: those that may begin, and those that wait for room. Pure.

1. The jobs of a key are processed one after another, in the order in which they were offered.
2. A job has room if its key has fewer than `max_per_key` waiting jobs or, for a new key, if there
   are fewer than `max_keys` keys.
3. Jobs without room wait in the order of their arrival. They do not delay later jobs of other keys
   that have room.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from ..._core.order.lanes import Entry, Lanes

if TYPE_CHECKING:
    from collections.abc import Hashable

    from ..message import Message
    from .context import EventContext


class Job(Entry):
    """A value that is processed for a key, on behalf of an event."""

    __slots__ = ("_context", "key", "message", "value")

    def __init__(self, lane_key: Hashable, key: Any, value: Any, message: Message) -> None:
        # `super().__init__` is not called, since this runs once per event
        self.lane_key = lane_key
        self.behind = None
        self.key = key
        self.value = value
        self.message = message
        self._context: EventContext | None = None

    def begin(self, context: EventContext) -> None:
        """Set the event that waits for the job."""
        self._context = context

    def release(self) -> EventContext | None:
        """Return the waiting event, and remove the reference to it."""
        context, self._context = self._context, None
        return context


class JobQueue:
    """The jobs inside a scheduler."""

    def __init__(self, max_keys: int, max_per_key: int) -> None:
        self.ready: deque[Job] = deque()
        self._lanes: Lanes[Job] = Lanes()
        self._crowd: deque[Job] = deque()
        """Jobs without room."""
        self.max_keys = max_keys
        self.max_per_key = max_per_key

    def __len__(self) -> int:
        """Number of jobs that wait for their key."""
        return self._lanes.waiting

    @property
    def keys(self) -> int:
        """Number of keys with a job inside."""
        return len(self._lanes)

    @property
    def crowd(self) -> int:
        """Number of jobs that wait for room."""
        return len(self._crowd)

    def has_key(self, lane_key: Hashable) -> bool:
        """Return whether a job of a key is inside."""
        return lane_key in self._lanes.active

    def limit(self, max_keys: int, max_per_key: int) -> None:
        """Change the limits from now on; jobs inside stay."""
        self.max_keys, self.max_per_key = max_keys, max_per_key

    def offer(self, job: Job) -> bool:
        """Accept a job and return true, or let it wait for capacity and return false."""
        if self._crowd and any(each.lane_key == job.lane_key for each in self._crowd):
            is_in = False
        else:
            is_in = self._take(job)
        if not is_in:
            self._crowd.append(job)
        return is_in

    def _take(self, job: Job) -> bool:
        lanes, key = self._lanes, job.lane_key
        if key not in lanes.active:
            if len(lanes.active) >= self.max_keys:
                return False
            lanes.active.add(key)
            self.ready.append(job)
            return True
        if lanes.length(key) >= self.max_per_key:
            return False
        lanes.wait(job)
        return True

    def place(self, job: Job) -> str:
        """Return the place of a job that has not begun, for operators."""
        if job in self._crowd:
            return f"{self.keys} of {self.max_keys} keys, {self.max_per_key} jobs per key at most"
        return "waiting for a worker" if job in self.ready else "behind earlier jobs of its key"

    def done(self, job: Job) -> list[Job]:
        """End the turn of a job; return the jobs that now have room."""
        following = self._lanes.leave(job.lane_key)
        if following is not None:
            self.ready.append(following)
        return self.admit() if self._crowd else []

    def admit(self) -> list[Job]:
        """Accept and return the jobs that now have room."""
        taken: list[Job] = []
        left: deque[Job] = deque()
        full: set[Hashable] = set()
        for job in self._crowd:
            if job.lane_key not in full and self._take(job):
                taken.append(job)
            else:
                full.add(job.lane_key)
                left.append(job)
        self._crowd = left
        return taken

    def forget(self, job: Job) -> list[Job]:
        """Remove a job that has not begun; return the jobs that no longer wait for room, possibly
        itself.
        """
        if job in self._crowd:
            self._crowd.remove(job)
            return [job]
        if job in self.ready:
            self.ready.remove(job)
            return self.done(job)
        self._lanes.drop(job)
        return self.admit() if self._crowd else []
