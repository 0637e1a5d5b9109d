"""The figures of the queues of a schema, and the state of their monitor."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .queue_stats import QueueStats


@dataclass(frozen=True, slots=True)
class QueueFigures:
    """What one look at the queues of a schema has found."""

    queues: Mapping[str, QueueStats | None]
    """By name; `None` for one that could not be read in time."""
    paused: Mapping[str, bool]
    """Whether a queue is paused, also of one that could not be read."""
    dead_rows: Mapping[str, int]
    """Dead rows of the tables of queues, as the server estimates them."""
    sizes: Mapping[str, int]
    """Bytes of those tables, with their indexes."""


@dataclass(frozen=True, slots=True)
class QueueMonitorStats:
    """The state of a `QueueMonitor`, with what its last look has found."""

    state: Literal["open", "closed"]
    looks: int
    """Looks that were completed."""
    failed: int
    """Looks and queries of single queues that failed."""
    figures: QueueFigures | None = None
    """`None` before the first look, after one that failed, and when the last one is too old."""
