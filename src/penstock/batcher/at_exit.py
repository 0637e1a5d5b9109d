"""What runs on a thread of its own is ended before the interpreter stops threads.

`atexit` comes too late for it: by then `concurrent.futures` takes no more work, so a sink that is a plain function could not write. The
hook of `threading` comes before; the one registered last comes first, and that of `concurrent.futures` is registered as its thread pool is
imported: here, before ours.
"""

from __future__ import annotations

import concurrent.futures.thread  # noqa: F401  # pyright: ignore[reportUnusedImport]  # see above
import logging
import threading
from typing import Protocol

logger = logging.getLogger("penstock.batcher")


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
            thing.end_at_exit()
        except Exception:
            logger.exception("%r could not be ended at exit", thing)
