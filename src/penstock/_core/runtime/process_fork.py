"""What happens to running things in a forked child: only the forking thread lives there, and every
socket and selector is shared.

1. Whatever runs hears of the fork in the child, before anything else happens there.
2. What belongs to the parent is kept unused for as long as the child lives: closing or collecting
   it could write to a shared connection, or take a file off the selector that the parent waits on.
"""

from __future__ import annotations

import os
from typing import Protocol
from weakref import WeakSet


class Forks(Protocol):
    """Something that runs."""

    def after_fork(self) -> None:
        """This is the child: nothing runs any more, and locks may be held by threads that do not
        exist.
        """
        ...


_running: WeakSet[Forks] = WeakSet()
_left_to_parent: list[object] = []


def watch(thing: Forks) -> None:
    """Tell `thing` of forks for as long as it lives."""
    _running.add(thing)


def leave_to_parent(*things: object) -> None:
    """Keep these, and never look at them again."""
    _left_to_parent.extend(things)


def _in_child() -> None:
    for thing in list(_running):
        thing.after_fork()


if hasattr(os, "register_at_fork"):  # not on Windows, where nothing forks
    os.register_at_fork(after_in_child=_in_child)
