"""Forked processes: a child has only the forking thread, and shares every socket and selector.

1. `after_fork` of running objects runs in the child before any other code, or at the first call of
   `check` if the process was forked without Python's hooks, as uWSGI does.
2. The child keeps the parent's objects, unused, until it exits: closing or collecting one could
   write to a shared connection, or remove a file from the parent's selector.
3. A lock that another thread held at the fork stays held in the child: see `ProcessLock`.
"""

from __future__ import annotations

import os
import threading
from typing import Protocol
from weakref import WeakSet


class ForkAware(Protocol):
    """An object to reset in a forked child: its loop and threads are gone, locks may be held."""

    def after_fork(self) -> None: ...


_running: WeakSet[ForkAware] = WeakSet()
_left_to_parent: list[object] = []
_process = os.getpid()


class ProcessLock:
    """A reentrant lock that is free in a forked child."""

    def __init__(self) -> None:
        self._of_process: dict[int, threading.RLock] = {}

    def __enter__(self) -> None:
        # atomic: threads of one process get the same lock
        self._of_process.setdefault(os.getpid(), threading.RLock()).acquire()

    def __exit__(self, *_: object) -> None:
        self._of_process[os.getpid()].release()


_noticing = ProcessLock()


def watch(thing: ForkAware) -> None:
    """Call `thing.after_fork` in forked children as long as `thing` exists."""
    _running.add(thing)


def leave_to_parent(*things: object) -> None:
    """Prevent the parent's objects from being collected in this child."""
    _left_to_parent.extend(things)


def check() -> bool:
    """Return whether this call is the first to notice a fork; the parent's objects are now reset."""
    if os.getpid() == _process:
        return False
    _in_child()
    return True


def _in_child() -> None:
    global _process  # noqa: PLW0603  # the process for which all objects are reset
    with _noticing:
        if os.getpid() != _process:
            for thing in list(_running):
                thing.after_fork()
            _process = os.getpid()


if hasattr(os, "register_at_fork"):  # not on Windows, which has no fork
    os.register_at_fork(after_in_child=_in_child)
