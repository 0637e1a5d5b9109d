"""An application with state that counts in jobs and finalisers, and whose state can be calculated.

The handler of an event marks it as open and begins a job. The finaliser removes the mark, adds one
to the count of all events (a key that all events share), extends the chain of the event's key
(which depends on the order of its events), and for every tenth event writes a key that no other
event writes.
"""

from __future__ import annotations

import hashlib
from random import Random
from typing import TYPE_CHECKING, Any

from sluicegate.batcher import LoopClock
from sluicegate.consumer.jobs import Interjector, JobScheduler

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sluicegate.consumer.jobs import EventContext, Incomplete

CLOCK = LoopClock()

KEYS = 20


def key_of(offset: int) -> str:
    """The key of the record at this offset."""
    return f"k{Random(offset).randrange(KEYS)}"


def chained(before: str, offset: int) -> str:
    """The chain of a key after one more event."""
    return hashlib.md5(f"{before}{offset}".encode(), usedforsecurity=False).hexdigest()


def expected(offsets: Iterable[int]) -> dict[str, Any]:
    """The state that these events produce in their order."""
    state: dict[str, Any] = {}
    for offset in offsets:
        key = f"chain/{key_of(offset)}"
        state[key] = chained(state.get(key, ""), offset)
        state["all"] = state.get("all", 0) + 1
        if offset % 10 == 0:
            state[f"once/{offset}"] = offset
    return state


def assert_replay(position: int, state: dict[str, Any]) -> None:
    """Compare a stored state with the one that the events before its position produce."""
    copy = state.pop("copy", 0)
    assert copy <= state.get("all", 0), "an interjection has seen events that are not stored"
    assert state == expected(range(position))


class Counting:
    """The handler, its jobs and interjections."""

    def __init__(self, seed: int, seconds: float = 0.002) -> None:
        self._random = Random(seed)
        self._seconds = seconds
        self.jobs: JobScheduler[str, int] = JobScheduler(
            self.process, self.finalise, concurrency=16, max_keys=KEYS
        )

        self.interjections = [Interjector(self.copy, every=0.003, jitter=0.001, seed=seed)]

    async def copy(self, context: EventContext) -> None:
        """Copy the count."""
        context.store.put("copy", context.store.get("all", 0))

    async def handle(self, context: EventContext) -> Incomplete:
        """Begin a job."""
        offset = context.message.offset
        context.store.put(f"open/{offset:09}", {"by": "handler"})
        return self.jobs.schedule(context, key_of(offset), offset)

    async def process(self, key: str, offset: int) -> None:
        """Suspend for a while."""
        await CLOCK.sleep(self._random.uniform(0.0, self._seconds))

    async def finalise(
        self, context: EventContext, key: str, offset: int, error: BaseException | None
    ) -> None:
        """Count."""
        store = context.store
        assert error is None
        assert store.delete(f"open/{offset:09}")
        store.put("all", store.get("all", 0) + 1)
        if offset % 10 == 0:
            store.put(f"once/{offset}", offset)
        store.put(f"chain/{key}", chained(store.get(f"chain/{key}", ""), offset))
