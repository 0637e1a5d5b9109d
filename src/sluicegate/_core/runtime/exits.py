"""`SystemExit` and `KeyboardInterrupt` from a callback of the program.

The current step is finished first, so that counts stay correct and a shutdown still works. Then the
event loop raises the exception, as if from a task, and `asyncio.run` ends with it.

Only the first exit on a loop is raised: a second one would interrupt `asyncio.run` while it cancels
the other tasks, and so the shutdown that the first one has begun.
"""

from __future__ import annotations

import asyncio
from weakref import WeakSet

Exit = (KeyboardInterrupt, SystemExit)

_ending: WeakSet[asyncio.AbstractEventLoop] = WeakSet()


def is_first_exit() -> bool:
    """Return whether no exit has been raised on the running loop, and note that one is now."""
    loop = asyncio.get_running_loop()
    is_first = loop not in _ending
    _ending.add(loop)
    return is_first


def exit_later(error: BaseException) -> None:
    """End the running loop with `error` after the current step, if it is one of `Exit`."""
    if isinstance(error, Exit) and is_first_exit():
        asyncio.get_running_loop().call_soon(_exit, error)


def _exit(error: BaseException) -> None:
    raise error
