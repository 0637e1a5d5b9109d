"""Exit codes, and cancellation by SIGTERM."""

from __future__ import annotations

import asyncio
import signal

OK = 0
FAILED = INCOMPLETE = 1
BAD_USE = 2
INTERRUPTED = 130
TERMINATED = 143


class Termination:
    """Cancels the task that created it when SIGTERM arrives."""

    def __init__(self) -> None:
        self.has_come = False
        self._task = asyncio.current_task()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, self._arrive)

    def _arrive(self) -> None:
        self.has_come = True
        if self._task is not None:
            self._task.cancel()
