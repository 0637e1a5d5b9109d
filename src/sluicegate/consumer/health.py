"""Readiness and liveness.

| a consumer | ready | alive |
|---|---|---|
| is not open, or does not run yet | no | yes |
| runs, without an assignment so far | no | yes |
| runs, and its source has assigned partitions with their positions (perhaps none) | yes | yes |
| has a source that reports trouble | no | yes |
| drains | no | yes |
| has failed | no | no |
| has ended | no | no |
| has an event loop that is blocked | as before | no |

A stall affects neither: it may be caused by an unavailable destination, which a restart does not
cure.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from .._core.clock import LoopClock
from .._core.logs import for_log

if TYPE_CHECKING:
    import asyncio

    from .parts import Parts

BLOCKED_AFTER = 30.0
"""Seconds without a heartbeat after which the event loop counts as blocked."""


@dataclass(frozen=True, slots=True)
class Health:
    """Why a consumer is not ready, not alive, or stalled; `None` for each that does not apply."""

    not_ready: str | None
    not_alive: str | None
    stalled: str | None

    @property
    def is_ready(self) -> bool:
        """Whether records are fetched and handled."""
        return self.not_ready is None

    @property
    def is_alive(self) -> bool:
        """Whether the consumer can continue; otherwise it needs a restart."""
        return self.not_alive is None


NOT_OPEN = Health("it is not open", None, None)


class Heartbeat:
    """The heartbeat of a consumer's event loop. Thread-safe to read."""

    def __init__(self) -> None:
        self._clock: LoopClock | None = None
        self._last = 0.0

    def begin(self, loop: asyncio.AbstractEventLoop) -> None:
        """Start the heartbeat on this loop."""
        self._clock = LoopClock(loop)
        self.beat()

    def beat(self) -> None:
        """Record a heartbeat."""
        if self._clock is not None:
            self._last = self._clock.now()

    def end(self) -> None:
        """Stop the heartbeat."""
        self._clock = None

    @property
    def is_beating(self) -> bool:
        """Whether the heartbeat has started and not stopped."""
        return self._clock is not None

    @property
    def late(self) -> float:
        """Seconds since the last heartbeat; 0 before the first and after the end."""
        clock = self._clock
        return 0.0 if clock is None else clock.now() - self._last


def why_not_ready(parts: Parts, heart: Heartbeat) -> str | None:
    """Return why nothing is fetched and handled; `None` if the consumer is ready."""
    if parts.ending.is_begun:
        return "it drains" if heart.is_beating else "it has ended"
    if not heart.is_beating:
        return "it does not run yet"
    if (trouble := parts.claims.trouble) is not None:
        return f"its source cannot deliver: {trouble}"
    if not parts.claims.was_assigned:
        return "its source has not assigned partitions yet"
    if parts.claims.unread():
        return "it reads the parked keys, or the state, of its partitions"
    return None


def why_not_alive(parts: Parts, heart: Heartbeat) -> str | None:
    """Return why the consumer needs a restart; `None` if it is alive."""
    if (error := parts.ending.error) is not None:
        return f"it has failed: {for_log(error)}"
    if parts.ending.is_begun and not heart.is_beating:
        return "it has ended"
    if (late := heart.late) > BLOCKED_AFTER:
        return f"its event loop has been blocked for {late:.0f} s"
    return None
