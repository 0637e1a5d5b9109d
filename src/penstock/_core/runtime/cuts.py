"""Cancellations that a client answers with an error of its own, such as that of a broken connection.

A loop that takes every error for one to try again after would go on for ever then.
"""

from __future__ import annotations

import asyncio


def is_cut() -> bool:
    """Whether the running task is being cancelled; an answer or error of a client is unreliable then."""
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0


def end_if_cut(error: BaseException) -> None:
    """Raise `CancelledError` from this error if the running task is being cancelled."""
    if is_cut():
        raise asyncio.CancelledError from error
