"""Readiness and liveness.

| | ready | alive |
|---|---|---|
| before `async with` | no | yes |
| open, without an assignment, or not running | no | yes |
| running, and the source has assigned partitions (perhaps none) with their positions | yes | yes |
| the source reports trouble | no | yes |
| from the beginning of the drain on | no | yes |
| the event loop is blocked | as before | no |
| after the end, by whatever cause | no | no |

A stall is neither: a destination that is away makes one, and a restart does not cure that.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Health:
    """Why a consumer is not ready, not alive, or stalled; `None` where it is not so."""

    not_ready: str | None = None
    not_alive: str | None = None
    stalled: str | None = None

    @property
    def ready(self) -> bool:
        """Whether records are fetched and handled."""
        return self.not_ready is None

    @property
    def alive(self) -> bool:
        """Whether the consumer's tasks go on; a dead one needs a restart."""
        return self.not_alive is None


NOT_OPEN = Health("the consumer is not open")
