"""What runs on a thread of its own is ended before the interpreter stops threads.

`atexit` comes too late for it: by then `concurrent.futures` takes no more work, so a sink that is a
plain function could not write. The hook of `threading` comes before; the one registered last comes
first, and that of `concurrent.futures` is registered as its thread pool is imported: here, before
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

INTERRUPTS = 1000
"""How often the end of one thing may be interrupted before it is given up; each time it has to end
at once.
"""


class Ends(Protocol):
    """Something to be ended at exit."""

    def end_at_exit(self) -> None:
        """End, within a bound of its own."""
        ...


_running: dict[int, Ends] = {}
_registered: list[bool] = []


def enter(thing: Ends) -> None:
    """End this one at exit, unless it leaves before."""
    _running[id(thing)] = thing
    if not _registered:
        _registered.append(True)
        threading._register_atexit(_end_all)  # type: ignore[attr-defined]  # noqa: SLF001  # see above


def leave(thing: Ends) -> None:
    """Not this one."""
    _running.pop(id(thing), None)


def _end_all() -> None:
    for thing in list(_running.values()):
        try:
            _end(thing)
        except BaseException as error:  # the others are still to be ended
            say(logger, logging.ERROR, "%s could not be ended at exit", repr_of(thing), error=error)


def _end(thing: Ends) -> None:
    """End it. An interrupt means *now*: the shutdown has been told so, and is waited for all the
    same.
    """
    for _ in range(INTERRUPTS):
        with contextlib.suppress(KeyboardInterrupt):
            thing.end_at_exit()
            return
    thing.end_at_exit()
