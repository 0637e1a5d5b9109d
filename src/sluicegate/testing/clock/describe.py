"""Readable descriptions of the tasks and timers of a loop that hangs."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


def describe(loop: asyncio.AbstractEventLoop, timers: Iterable[asyncio.TimerHandle]) -> str:
    """Describe the tasks and timers of `loop`, one per line."""
    lines = sorted(f"  {task_line(task)}" for task in asyncio.all_tasks(loop))
    lines += [f"  {timer_line(timer)}" for timer in sorted(timers)]
    return "\n".join(lines) or "  (no task, no timer)"


def task_line(task: asyncio.Task[Any]) -> str:
    """Describe a task: its name, its coroutine and its suspended frames, outermost first."""
    coroutine = task.get_coro()
    name = getattr(coroutine, "__qualname__", repr(coroutine))
    return f"task {task.get_name()!r} running {name}: " + " > ".join(_places(task, coroutine))


def timer_line(timer: asyncio.TimerHandle) -> str:
    """Describe a timer: its time and its callback."""
    return f"timer at {timer.when()}: {timer!r}"


def _places(task: asyncio.Task[Any], coroutine: Any) -> Iterator[str]:
    if not task.get_stack(limit=1):
        yield "not started"
        return
    while coroutine is not None:
        frame = getattr(coroutine, "cr_frame", None) or getattr(coroutine, "gi_frame", None)
        if frame is not None:
            yield f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_name}"
        coroutine = getattr(coroutine, "cr_await", None) or getattr(coroutine, "gi_yieldfrom", None)
