"""Ends objects with a thread of their own before the interpreter stops threads.

`atexit` is too late: by then `concurrent.futures` takes no more work, so a sink that is a plain
function could not write. The exit hooks of `threading` run earlier, in reverse order of
registration. `concurrent.futures` registers its own when its thread pool is imported: here, before
ours.
"""

from __future__ import annotations

import concurrent.futures.thread  # noqa: F401  # pyright: ignore[reportUnusedImport]  # see above
import contextlib
import logging
import threading
from typing import Protocol

from ..say import say
from ..text import repr_of

logger = logging.getLogger("penstock.batcher")

INTERRUPTS = 1000  # swallowed interrupts per object; each makes its shutdown end at once


class EndsAtExit(Protocol):
    """An object to end at the interpreter's exit, within a time limit of its own."""

    def end_at_exit(self) -> None: ...


_running: dict[int, EndsAtExit] = {}
_registered: list[bool] = []


def enter(thing: EndsAtExit) -> None:
    """End `thing` at exit, unless it leaves before."""
    _running[id(thing)] = thing
    if not _registered:
        _registered.append(True)
        threading._register_atexit(_end_all)  # type: ignore[attr-defined]  # noqa: SLF001  # see above


def leave(thing: EndsAtExit) -> None:
    """No longer end `thing` at exit."""
    _running.pop(id(thing), None)


def _end_all() -> None:
    for thing in list(_running.values()):
        try:
            _end(thing)
        except BaseException as error:  # the others still have to end
            say(logger, logging.ERROR, "%s could not be ended at exit", repr_of(thing), error=error)


def _end(thing: EndsAtExit) -> None:
    for _ in range(INTERRUPTS):  # an interrupted shutdown ends at once, and is awaited again
        with contextlib.suppress(KeyboardInterrupt):
            thing.end_at_exit()
            return
    thing.end_at_exit()
