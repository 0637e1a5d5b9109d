"""Cancellations that a client replaces with its own error, such as a broken connection.

A loop that retries after every error would then never end.
"""

from __future__ import annotations

import asyncio


def is_cut() -> bool:
    """Return whether the running task is being cancelled; a client's answer is then unreliable."""
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0


def end_if_cut(error: BaseException) -> None:
    """Raise `CancelledError` from this error if the running task is being cancelled."""
    if is_cut():
        raise asyncio.CancelledError from error
