"""Several writes of one batch at the same time."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence

    from .delivery import Delivery

Errors = dict[int, BaseException]


@dataclass(frozen=True, slots=True)
class Line:
    """One of several writes done at the same time: the branches it writes to, one after another,
    and how.
    """

    branches: Sequence[Delivery]
    run: Callable[[], Coroutine[Any, Any, Mapping[int, BaseException]]]


async def side_by_side(
    delivery: Delivery,
    lines: Sequence[Line],
    ended: Callable[[int, Mapping[int, BaseException] | None], Iterable[int] | None],
) -> None:
    """Write every line, each an activity of its own that backs off by itself. Suspends until all
    have ended.

    `ended` hears of each line when it has ended, with its errors, or `None` if it was cut; it may
    return lines to cancel. Cancellation is passed on to all, and waited for: what ignores it goes
    on holding the batch's slot.
    """
    delivery.go_on_beside([line.branches for line in lines])
    tasks: list[asyncio.Task[Mapping[int, BaseException]]] = []

    def line_ended(place: int, task: asyncio.Task[Mapping[int, BaseException]]) -> None:
        delivery.ended_beside(lines[place].branches[0])
        for other in (
            ended(
                place, None if task.cancelled() or task.exception() is not None else task.result()
            )
            or ()
        ):
            tasks[other].cancel()

    async with asyncio.TaskGroup() as group:
        for place, line in enumerate(lines):
            task = group.create_task(line.run())
            task.add_done_callback(partial(line_ended, place))
            tasks.append(task)
