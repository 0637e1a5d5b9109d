"""Wall and processor time of a period in which other processes work for this one."""

from __future__ import annotations

from time import perf_counter
from typing import TYPE_CHECKING

from .stopwatch import Took

if TYPE_CHECKING:
    import psutil

SERVER = "postgres"


class FamilyStopwatch:
    """A stopwatch that starts at its construction. Its processor time is that of this process and
    of all processes that it started, running or ended, except PostgreSQL.
    """

    def __init__(self) -> None:
        self._wall = perf_counter()
        self._processor = _processor_seconds()

    def read(self) -> Took:
        """Return the time so far."""
        wall = perf_counter() - self._wall
        return Took(wall, _processor_seconds() - self._processor)


def _processor_seconds() -> float:
    import psutil

    this = psutil.Process()
    family = (this, *this.children(recursive=True))
    return sum(_seconds(process) for process in family if not _is_server(process))


def seconds_of(process: psutil.Process) -> float:
    """Return the processor time of a process and of all that it started, running or ended."""
    return sum(map(_seconds, (process, *process.children(recursive=True))))


def _is_server(process: psutil.Process) -> bool:
    import psutil

    try:
        return bool(process.name() == SERVER)
    except psutil.NoSuchProcess:
        return True


def _seconds(process: psutil.Process) -> float:
    """Return the seconds of the process and of its ended children."""
    import psutil

    try:
        used = process.cpu_times()
    except psutil.NoSuchProcess:
        return 0.0
    return float(used.user + used.system + used.children_user + used.children_system)
