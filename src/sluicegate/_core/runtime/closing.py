"""The time by which a stopped consumer has to be closed, for everything that it closes.

Each clean-up that talks to a server has its own limit, such as `close_timeout`. All of them together
end with the drain, plus one second. Tasks that are created in the context see the limit too.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import Self

from ..clock import LOOP_CLOCK

GRACE = 1.0
"""Seconds for closing after the end of a drain."""
MARGIN = 0.2
"""The last part of these seconds, for cutting off what has not ended by itself."""


class Closing:
    """The time by which everything in its context has to be closed, once it is known."""

    def __init__(self) -> None:
        self.until: float | None = None

    def __enter__(self) -> Self:
        _current.set(self)
        return self

    def __exit__(self, *_: object) -> None:
        _current.set(None)

    def limit(self, drain: float) -> None:
        """End all clean-ups this many seconds from now, plus the grace."""
        self.until = LOOP_CLOCK.now() + drain + GRACE

    def within(self, seconds: float) -> float:
        """Return the seconds for closing everything, at most `seconds`."""
        return (
            seconds if self.until is None else max(0.0, min(seconds, self.until - LOOP_CLOCK.now()))
        )


_current: ContextVar[Closing | None] = ContextVar("closing", default=None)


def close_within(seconds: float) -> float:
    """Return the seconds for a clean-up whose own limit is `seconds`.

    It ends `MARGIN` before everything is cut off.
    """
    closing = _current.get()
    if closing is None or closing.until is None:
        return seconds
    return max(0.0, closing.within(seconds + MARGIN) - MARGIN)
