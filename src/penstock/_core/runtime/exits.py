"""`SystemExit` and `KeyboardInterrupt` from a callback of the program.

The current step is finished first, so that counts stay correct and a shutdown still works. Then the
event loop raises the exception, as if from a task, and `asyncio.run` ends with it.
"""

from __future__ import annotations

import asyncio

Exit = (KeyboardInterrupt, SystemExit)


def exit_later(error: BaseException) -> None:
    """End the running loop with `error` after the current step, if it is one of `Exit`."""
    if isinstance(error, Exit):
        asyncio.get_running_loop().call_soon(_exit, error)


def _exit(error: BaseException) -> None:
    raise error
