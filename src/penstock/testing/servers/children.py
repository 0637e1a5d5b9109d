"""Child processes of an event loop, which must not outlive it.

The transport of a child that is not reaped before its loop closes is found by the garbage collector,
which warns in whatever runs at that time.
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
    """Kill those that still run, and suspend until all are reaped and their pipes closed.

    A cancellation is raised only then. No other task may read their output meanwhile. A process of
    theirs that holds a pipe open holds this up.
    """
    cancelled: asyncio.CancelledError | None = None
    for each in processes:
        if each.returncode is None:
            with suppress(ProcessLookupError):
                os.kill(each.pid, signal.SIGKILL)  # each.kill() polls, and takes the exit code away
    for each in processes:
        is_reaped = False
        while not is_reaped:
            try:
                await each.communicate()  # wait() alone never ends behind a pipe that is full
                is_reaped = True
            except asyncio.CancelledError as error:
                cancelled = error
    if cancelled is not None:
        raise cancelled
