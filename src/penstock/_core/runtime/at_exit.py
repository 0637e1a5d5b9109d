"""Objects with a thread of their own, ended before the interpreter stops threads.

`atexit` is too late: by then `concurrent.futures` takes no more work, so a sink that is a plain
function could not write. The exit hooks of `threading` run earlier, the last registered one first.
`concurrent.futures` registers its own when its thread pool is imported, so that happens here, before
ours is registered.
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

INTERRUPTS = 1000
"""Interrupts of one object's end that are swallowed; each makes it end at once."""


class EndsAtExit(Protocol):
    """An object to end at the interpreter's exit."""

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
    """Do not end `thing` at exit any more."""
    _running.pop(id(thing), None)


def _end_all() -> None:
    for thing in list(_running.values()):
        try:
            _end(thing)
        except BaseException as error:  # the others still have to end
            say(logger, logging.ERROR, "%s could not be ended at exit", repr_of(thing), error=error)


def _end(thing: EndsAtExit) -> None:
    """End it. An interrupt makes a running shutdown end at once; it is still waited for."""
    for _ in range(INTERRUPTS):
        with contextlib.suppress(KeyboardInterrupt):
            thing.end_at_exit()
            return
    thing.end_at_exit()
