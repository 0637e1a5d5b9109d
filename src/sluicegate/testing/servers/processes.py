"""The processes of a server, found by their current folder and ended together."""

from __future__ import annotations

import contextlib
import os
import select
import signal
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    import psutil


def works_in(process: psutil.Process, folder: Path) -> bool:
    """Return whether `process` is alive (not a zombie), with a working directory in `folder`."""
    import psutil

    try:
        current = Path(process.cwd())
    except (psutil.Error, OSError):
        return False
    return current.is_relative_to(folder)


def find_in(folder: Path) -> list[psutil.Process]:
    """Find every live process whose current folder is `folder` or below it."""
    import psutil

    return [process for process in psutil.process_iter() if works_in(process, folder)]


def send(processes: Iterable[psutil.Process], number: signal.Signals) -> None:
    """Send a signal to each process that still exists."""
    import psutil

    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(number)


def kill_all_in(folder: Path, seconds: float) -> bool:
    """Kill every process that works in `folder`, including those that start meanwhile.

    Blocks for at most `seconds`; returns whether all have ended.
    """
    processes = find_in(folder)
    send(processes, signal.SIGSTOP)  # a stopped process starts no other one
    processes = find_in(folder)
    send(processes, signal.SIGKILL)
    left = [process for process in processes if not wait_gone(process, seconds)]
    return not left


def wait_gone(process: psutil.Process, seconds: float) -> bool:
    """Block until `process` has ended, reaped or not, for at most `seconds`; return whether it has."""
    import psutil

    if not hasattr(os, "pidfd_open"):
        return not psutil.wait_procs([process], timeout=seconds)[1]
    try:
        descriptor = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([descriptor], [], [], seconds)[0])
    finally:
        os.close(descriptor)
