"""Ends objects with their own thread before the interpreter stops threads.

`atexit` hooks run too late: by then `concurrent.futures` accepts no more work, so a sink that is a
plain function could not write. The exit hooks of `threading` run earlier, in reverse order of
registration. `concurrent.futures` registers its hook when its thread pool is imported; this module
imports it first, so our hook runs before.
"""

from __future__ import annotations

import concurrent.futures.thread  # noqa: F401  # pyright: ignore[reportUnusedImport]  # see above
import contextlib
import logging
import threading
from typing import Protocol

from ..say import say
from ..text import repr_of

logger = logging.getLogger("sluicegate.batcher")

INTERRUPTS = 1000  # swallowed interrupts per object; each ends its shutdown immediately


class EndsAtExit(Protocol):
    """An object to end at the interpreter's exit, within its own time limit."""

    def end_at_exit(self) -> None: ...


_running: dict[int, EndsAtExit] = {}
_registered: list[bool] = []


def enter(thing: EndsAtExit) -> None:
    """Register `thing` to be ended at exit."""
    _running[id(thing)] = thing
    if not _registered:
        _registered.append(True)
        threading._register_atexit(_end_all)  # type: ignore[attr-defined]  # noqa: SLF001  # see above


def leave(thing: EndsAtExit) -> None:
    """Unregister `thing`."""
    _running.pop(id(thing), None)


def _end_all() -> None:
    for thing in list(_running.values()):
        try:
            _end(thing)
        except BaseException as error:  # the others must still be ended
            say(logger, logging.ERROR, "%s could not be ended at exit", repr_of(thing), error=error)


def _end(thing: EndsAtExit) -> None:
    for _ in range(INTERRUPTS):  # an interrupted shutdown ends immediately, and is awaited again
        with contextlib.suppress(KeyboardInterrupt):
            thing.end_at_exit()
            return
    thing.end_at_exit()
