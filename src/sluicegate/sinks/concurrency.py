"""Concurrent writes of one batch, each with its own backoffs: those of `FanOut` and `Router`.

1. Each write is an activity of the batch's pacing, and covers one or more branches of its delivery.
2. The batch's own activity is split among the writes, and resumes when the last of them ends.
3. Cancellation is passed on to all writes and awaited: a write that ignores it keeps the batch's
   slot.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence

    from .._core.delivery.delivery import Delivery


@dataclass(frozen=True, slots=True)
class ConcurrentWrite:
    """One of several concurrent writes: of branches that are written one after another."""

    branches: Sequence[Delivery]
    run: Callable[[], Coroutine[Any, Any, Mapping[int, BaseException]]]


async def write_concurrently(
    delivery: Delivery,
    writes: Sequence[ConcurrentWrite],
    ended: Callable[[int, Mapping[int, BaseException] | None], Iterable[int] | None],
) -> None:
    """Run all writes. Suspends until all have ended.

    `ended` is called with each ended write and its errors (`None` if it was cut), and may return
    writes to cancel.
    """
    pacing, activity = delivery.pacing, delivery.activity
    activities = [object() for _ in writes]
    for write, own in zip(writes, activities, strict=True):
        for branch in write.branches:
            branch.join(own)
    pacing.split(activity, activities)
    running = set(activities)
    tasks: list[asyncio.Task[Mapping[int, BaseException]]] = []

    def write_ended(place: int, task: asyncio.Task[Mapping[int, BaseException]]) -> None:
        running.remove(activities[place])
        pacing.end(activities[place], resumes=None if running else activity)
        was_cut = task.cancelled() or task.exception() is not None
        for other in ended(place, None if was_cut else task.result()) or ():
            tasks[other].cancel()

    async with asyncio.TaskGroup() as group:
        for place, write in enumerate(writes):
            task = group.create_task(write.run())
            task.add_done_callback(partial(write_ended, place))
            tasks.append(task)
