"""The figures of the queues in a schema, and the state of their monitor."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .queue_stats import QueueStats


@dataclass(frozen=True, slots=True)
class QueueFigures:
    """The figures of the queues in a schema, from one reading."""

    queues: Mapping[str, QueueStats | None]
    """By name; `None` for a queue that could not be read in time."""
    paused: Mapping[str, bool]
    """Whether each queue is paused, including queues that could not be read."""
    dead_rows: Mapping[str, int]
    """Dead rows of the queue tables, as estimated by the server."""
    sizes: Mapping[str, int]
    """Bytes of those tables, including their indexes."""


@dataclass(frozen=True, slots=True)
class QueueMonitorStats:
    """The state of a `QueueMonitor`, and the figures of its last reading."""

    state: Literal["open", "closed"]
    polls: int
    """Number of completed readings."""
    failed: int
    """Number of failed readings, and of failed queries of single queues."""
    figures: QueueFigures | None = None
    """`None` before the first reading, after a failed one, and if the last one is too old."""
