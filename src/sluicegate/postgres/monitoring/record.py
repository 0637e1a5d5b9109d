"""The record of the polls of a schema."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Generic, Literal, TypeVar

from ..._core.logs import for_log, log_safely

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..._core.clock import Clock

FiguresT = TypeVar("FiguresT")
StatsT = TypeVar("StatsT")

_FAILED = "%s: a poll of the %s failed (%s); there are no figures until one succeeds"
_AGAIN = "%s: polls of the %s succeed again"
_NO_PART = "%s: the %s %r could not be read (%s); it has no figures"
_PART_AGAIN = "%s: the %s %r can be read again"


class PollRecord(Generic[FiguresT, StatsT]):
    """The counts of polls, and the figures of the last one. Read from any thread.

    Args:
        name: the monitor's, for log lines.
        stale_after: seconds after which figures are not shown.
        make: builds the stats from the state, the counts of polls and failures, and the figures.
        what: the kind of object that is polled, for log lines.
        part: the kind of part that is read separately, for log lines.
        logger: the logger for these lines.
    """

    def __init__(
        self,
        name: str,
        stale_after: float,
        make: Callable[[Literal["open", "closed"], int, int, FiguresT | None], StatsT],
        *,
        what: str,
        part: str,
        logger: logging.Logger,
    ) -> None:
        self._name = name
        self._stale_after = stale_after
        self._make = make
        self._what = what
        self._part = part
        self._logger = logger
        self._state: Literal["open", "closed"] = "closed"
        self._polls = self._failed = 0
        self._figures: FiguresT | None = None
        self._clock: Clock | None = None
        self._at = 0.0
        self._fails = False
        self._unread = set[str]()
        """The parts that could not be read by the last poll."""
        self._lock = threading.Lock()

    def begin(self, clock: Clock) -> None:
        """Record that the monitor is open. The clock can be read from any thread."""
        with self._lock:
            self._clock = clock
            self._state, self._figures = "open", None

    def end(self) -> None:
        """Record that the monitor is closed."""
        with self._lock:
            self._state, self._figures = "closed", None

    def polled(self, figures: FiguresT, now: float) -> None:
        """Store the figures of a poll."""
        with self._lock:
            self._at = now
            self._polls += 1
            self._figures = figures
        if self._fails:
            self._fails = False
            log_safely(self._logger, logging.INFO, _AGAIN, self._name, self._what)

    def failed(self, error: Exception) -> None:
        """Count a failed poll, and drop the figures; log the first of consecutive failures."""
        with self._lock:
            self._failed += 1
            self._figures = None
        if not self._fails:
            self._fails = True
            told = (self._name, self._what, for_log(error))
            log_safely(self._logger, logging.WARNING, _FAILED, *told)

    def failed_in_part(self, name: str, error: Exception) -> None:
        """Count a part that could not be read; log the first of consecutive failures."""
        with self._lock:
            self._failed += 1
        if name not in self._unread:
            self._unread.add(name)
            told = (self._name, self._part, name, for_log(error))
            log_safely(self._logger, logging.WARNING, _NO_PART, *told)

    def succeeded_in_part(self, name: str) -> None:
        """Record that a part was read."""
        if name in self._unread:
            self._unread.remove(name)
            log_safely(self._logger, logging.INFO, _PART_AGAIN, self._name, self._part, name)

    def stats(self) -> StatsT:
        """Return the counts, and the figures unless they are too old."""
        with self._lock:
            at, clock, figures = self._at, self._clock, self._figures
            state, polls, failed = self._state, self._polls, self._failed
        if clock is not None and figures and clock.now() - at > self._stale_after:
            figures = None
        return self._make(state, polls, failed, figures)
