"""One timer, re-armed lazily."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from .._core.clock import Clock, TimerHandle


class Alarm:
    """Calls `ring` at the earliest time that was set, and `on_error` if that raises."""

    __slots__ = ("_at", "_on_error", "_ring", "_timer")

    def __init__(
        self, ring: Callable[[], object], on_error: Callable[[BaseException], object]
    ) -> None:
        self._ring = ring
        self._on_error = on_error
        self._timer: TimerHandle | None = None
        self._at = 0.0

    def set(self, clock: Clock, when: float) -> None:
        """Ring at `when`, unless an earlier time is set."""
        if self._timer is not None:
            if self._at <= when:
                return
            self._timer.cancel()
        self._at = when
        self._timer = clock.call_at(when, self._rings)

    def cancel(self) -> None:
        """Cancel the alarm."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _rings(self) -> None:
        self._timer = None
        try:
            self._ring()
        except BaseException as error:
            self._on_error(error)
