"""Cancellations that a client swallows, or replaces with its own error, as of a broken connection.

A loop that retries after every error would then never end, and a program would ignore its signal.

A task group may also cancel its own task and never undo that. In older Python versions (before
python/cpython#116720), a `TaskGroup` whose child fails while it waits for its children cancels its
own task and leaves `task.cancelling()` above 0: the task looks cancelled forever.
"""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

_EXIT = asyncio.TaskGroup.__aexit__.__code__
"""The frame in which a task group waits for its children."""


def is_cut() -> bool:
    """Return whether the running task is being cancelled; a client's result is then unreliable."""
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0


def end_if_cut(error: BaseException) -> None:
    """Raise `CancelledError` from this error if the running task is being cancelled."""
    if is_cut():
        raise asyncio.CancelledError from error


@contextmanager
def noticing_cuts() -> Generator[None]:
    """Raise `CancelledError` at the end if the running task was cancelled inside, and the code
    inside has swallowed that or raised another error.
    """
    task = asyncio.current_task()
    before = 0 if task is None else task.cancelling()
    try:
        yield
    except Exception as error:
        if task is not None:
            take_back(task, error)
            if task.cancelling() > before:
                raise asyncio.CancelledError from error
        raise
    if task is not None and task.cancelling() > before:
        raise asyncio.CancelledError


def _takes_back_too_early() -> bool:
    """Return whether `TaskGroup` calls `uncancel` only before it waits; names are in use order."""
    used = {name: place for place, name in enumerate(_EXIT.co_names)}
    return used.get("uncancel", -1) < used.get("_on_completed_fut", -1)


_TAKES_BACK_TOO_EARLY = _takes_back_too_early()


def take_back(task: asyncio.Task[object], error: BaseException) -> None:
    """Undo the cancellations of `task` by the task groups through which `error` has passed."""
    if not (_TAKES_BACK_TOO_EARLY and task.cancelling()):
        return
    for group in _groups(error):
        # after an error of the block itself, the group undid it before it waited
        if group._parent_cancel_requested and group._parent_task is task:  # type: ignore[attr-defined]  # noqa: SLF001
            task.uncancel()


def _groups(error: BaseException) -> Iterator[asyncio.TaskGroup]:
    """Yield the groups whose block ended normally, but whose children failed."""
    seen: set[int] = set()
    link: BaseException | None = error
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        trace = link.__traceback__
        while trace is not None:
            frame = trace.tb_frame
            if frame.f_code is _EXIT and frame.f_locals["et"] is None:
                yield frame.f_locals["self"]
            trace = trace.tb_next
        link = link.__cause__ or link.__context__
