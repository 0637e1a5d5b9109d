"""Forked processes: a child has only the forking thread, and shares every socket and selector.

1. `after_fork` of running objects runs in the child before any other code.
2. The child keeps the parent's objects, unused, until it exits: closing or collecting one could
   write to a shared connection, or remove a file from the parent's selector.
"""

from __future__ import annotations

import os
from typing import Protocol
from weakref import WeakSet


class ForkAware(Protocol):
    """An object to reset in a forked child: its loop and threads are gone, locks may be held."""

    def after_fork(self) -> None: ...


_running: WeakSet[ForkAware] = WeakSet()
_left_to_parent: list[object] = []


def watch(thing: ForkAware) -> None:
    """Call `thing.after_fork` in forked children as long as `thing` exists."""
    _running.add(thing)


def leave_to_parent(*things: object) -> None:
    """Prevent the parent's objects from being collected in this child."""
    _left_to_parent.extend(things)


def _in_child() -> None:
    for thing in list(_running):
        thing.after_fork()


if hasattr(os, "register_at_fork"):  # not on Windows, which has no fork
    os.register_at_fork(after_in_child=_in_child)
