"""Cancellations that a client swallows, or replaces with its own error, as of a broken connection.

A loop that retries after every error would then never end, and a program would ignore its signal.
"""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from typing import TYPE_CHECKING

from .task_groups import take_back

if TYPE_CHECKING:
    from collections.abc import Generator


def is_cut() -> bool:
    """Return whether the running task is being cancelled; a client's answer is then unreliable."""
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
