"""Child processes of an event loop, which must not outlive it.

If a child is not reaped before its loop closes, the garbage collector finds its transport later,
and warns in unrelated code.
"""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from asyncio.subprocess import Process


async def reap(*processes: Process) -> None:
    """Kill the children that still run; suspend until all are reaped and their pipes are closed.

    A cancellation is raised only then. No other task may read their output meanwhile. A descendant
    that holds a pipe open delays the return.
    """
    cancelled: asyncio.CancelledError | None = None
    for each in processes:
        if each.returncode is None:
            with suppress(ProcessLookupError):
                os.kill(each.pid, signal.SIGKILL)  # each.kill() polls, and consumes the exit code
    for each in processes:
        is_reaped = False
        while not is_reaped:
            try:
                await each.communicate()  # wait() alone never returns if a pipe is full
                is_reaped = True
            except asyncio.CancelledError as error:
                cancelled = error
    if cancelled is not None:
        raise cancelled
