"""Exceptions that ask the process to end, raised by a program's callback in the middle of a step of
ours.

The step is finished first, so that every count stays true and a shutdown still works. Then the
exception leaves by the event loop, as if a task had raised it: `asyncio.run` ends with it.
"""

from __future__ import annotations

import asyncio

Exit = (KeyboardInterrupt, SystemExit)


def exit_later(error: BaseException) -> None:
    """Let `error` end the running loop as soon as the current step is done, if it asks for an end;
    do nothing for any other.
    """
    if isinstance(error, Exit):
        asyncio.get_running_loop().call_soon(_exit, error)


def _exit(error: BaseException) -> None:
    raise error
