"""A guard: a small process that removes a folder when the process that started it has ended.

1. It waits for the process itself (by a pidfd on Linux 5.3 or newer, by a kqueue on macOS and BSD),
   not for the end of a pipe, which forked children would hold open. So every end of the process
   counts: an exit, a signal, a crash. The end of a thread or of a child does not.
2. It has its own session and ignores signals sent to process groups: Ctrl-C, a closing terminal,
   SIGTERM to a whole service.
3. It runs as a script and loads only this file while it waits, so it starts in about 20 ms and
   needs 9 MB.
"""

from __future__ import annotations

import os
import select
import shutil
import signal
import sys
from pathlib import Path

SECONDS = 60


def wait_for_the_end_of(parent: int) -> None:
    """Block until `parent`, the process that started this one, has ended."""
    if sys.platform == "linux":
        try:
            descriptor = os.pidfd_open(parent)
        except ProcessLookupError:
            return
        if os.getppid() == parent:  # otherwise it has ended, and its id may be reused
            select.select([descriptor], [], [])
    else:
        queue = select.kqueue()
        end = select.kevent(parent, select.KQ_FILTER_PROC, select.KQ_EV_ADD, select.KQ_NOTE_EXIT)
        try:
            queue.control([end], 0)
        except ProcessLookupError:
            return
        if os.getppid() == parent:
            queue.control(None, 1)


def main(parent: int, folder: Path) -> None:
    """Wait, then kill the processes that work in the folder, and remove it."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    wait_for_the_end_of(parent)
    from sluicegate.testing.servers.processes import (
        kill_all_in,  # a script has no package for relative imports
    )

    kill_all_in(folder, SECONDS)
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
