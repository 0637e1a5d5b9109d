"""A guard: a small process that removes a folder when the process that started it has ended.

1. It waits for the process itself (a pidfd on Linux from 5.3 on, a kqueue on macOS and BSD), not
   for the end of a pipe, whose other end forked children would hold open. So every end counts: an
   exit, a signal, a crash. The end of a thread or of a child does not.
2. It has a session of its own and ignores signals sent to process groups: Ctrl-C, a terminal that
   closes, SIGTERM to a whole service.
3. It runs as a script and loads only this file until then, so it starts in some 20 ms and needs
   9 MB.
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
        if os.getppid() == parent:  # else it has ended, and its id may be in use again
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
    """Wait; then kill the processes that work in the folder, and remove it."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    wait_for_the_end_of(parent)
    from penstock.testing.servers.processes import (
        kill_all_in,  # a script has no package to be relative to
    )

    kill_all_in(folder, SECONDS)
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
