"""A timer that expires after a period without activity."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..._core.clock import LOOP_CLOCK

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..._core.clock import TimerHandle


class Silence:
    """Calls `run_out` once, `seconds` after the last call of `heard`, or after construction."""

    def __init__(self, seconds: float, run_out: Callable[[], None]) -> None:
        self._seconds = seconds
        self._run_out = run_out
        self._heard_at = LOOP_CLOCK.now()
        self._timer: TimerHandle = LOOP_CLOCK.call_at(self._heard_at + seconds, self._look)

    def heard(self) -> None:
        """Restart the timer."""
        self._heard_at = LOOP_CLOCK.now()

    def stop(self) -> None:
        """Cancel the timer."""
        self._timer.cancel()

    def _look(self) -> None:
        due = self._heard_at + self._seconds
        if LOOP_CLOCK.now() < due:
            self._timer = LOOP_CLOCK.call_at(due, self._look)
        else:
            self._run_out()
