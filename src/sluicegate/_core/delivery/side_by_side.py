"""Concurrent writes of one batch."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence

    from .delivery import Delivery


@dataclass(frozen=True, slots=True)
class Line:
    """One of several concurrent writes: a sequence of branches."""

    branches: Sequence[Delivery]
    run: Callable[[], Coroutine[Any, Any, Mapping[int, BaseException]]]


async def side_by_side(
    delivery: Delivery,
    lines: Sequence[Line],
    ended: Callable[[int, Mapping[int, BaseException] | None], Iterable[int] | None],
) -> None:
    """Write all lines; each is an activity with its own backoffs. Suspends until all have ended.

    `ended` is called with each ended line and its errors (`None` if it was cut), and may return
    lines to cancel. Cancellation is passed on to all lines and awaited: a write that ignores it
    keeps the batch's slot.
    """
    pacing, activity = delivery.pacing, delivery.activity
    activities = [object() for _ in lines]
    for line, own in zip(lines, activities, strict=True):
        for branch in line.branches:
            branch.join(own)
    pacing.split(activity, activities)
    running = set(activities)
    tasks: list[asyncio.Task[Mapping[int, BaseException]]] = []

    def line_ended(place: int, task: asyncio.Task[Mapping[int, BaseException]]) -> None:
        running.remove(activities[place])
        pacing.end(activities[place], resumes=None if running else activity)
        was_cut = task.cancelled() or task.exception() is not None
        for other in ended(place, None if was_cut else task.result()) or ():
            tasks[other].cancel()

    async with asyncio.TaskGroup() as group:
        for place, line in enumerate(lines):
            task = group.create_task(line.run())
            task.add_done_callback(partial(line_ended, place))
            tasks.append(task)
