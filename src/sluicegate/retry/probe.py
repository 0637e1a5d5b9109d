"""Turns at probing an unavailable destination. Pure.

One batch holds the probe; the others queue and wait for its success. A batch that ends without
success hands the probe on.
"""

from __future__ import annotations

from .._core.clock import Signal


class ProbeTurns:
    """The queue of batches that may probe the destination, and the time of the next probe."""

    def __init__(self) -> None:
        self.changed = Signal()
        """Fires when the outage has ended or another batch may probe."""
        self.at = 0.0
        """The time at which the holder may send its probe."""
        self.not_before = 0.0
        """The end of the wait that the destination requested."""
        self._holder: object | None = None
        self._line: dict[object, None] = {}

    @property
    def has_others(self) -> bool:
        """Whether further batches wait for the probe."""
        return bool(self._line)

    def take(self, batch: object) -> bool:
        """Take the probe if it is free, or queue for it; return whether `batch` holds it now."""
        if self._holder is None:
            self._holder = batch
        if self._holder is batch:
            self._line.pop(batch, None)
        else:
            self._line.setdefault(batch)
        return self._holder is batch

    def schedule(self, at: float, *, not_before: float = 0.0) -> None:
        """Let the holder send its probe at that time."""
        self.at, self.not_before = at, not_before

    def pass_on(self, batch: object) -> None:
        """Hand the probe to the batch that has waited longest, if any; `batch` queues again."""
        if self._holder is not batch or not self._line:
            return
        self._holder = next(iter(self._line))
        del self._line[self._holder]
        self._line[batch] = None
        self.changed.fire()

    def leave(self, batch: object) -> None:
        """Remove a batch that has ended; if it held the probe, another batch may take it."""
        self._line.pop(batch, None)
        if self._holder is batch:
            self._holder = None
            self.changed.fire()

    def end(self) -> None:
        """Release every batch: the outage has ended."""
        self._holder = None
        self._line.clear()
        self.changed.fire()
