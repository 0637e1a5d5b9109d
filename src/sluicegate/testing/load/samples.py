"""One sample of a simulated run."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """The state of a run at one moment."""

    second: float
    workers: int
    max_items: int
    writing: int
    """Number of writes at the destination."""
    offered: float
    """Items that the batcher accepted, per second since the last sample."""
    written: float
    """Items written, per second since the last sample."""
