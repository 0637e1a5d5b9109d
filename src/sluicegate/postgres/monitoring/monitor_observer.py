"""Observers of a monitor: synchronous callbacks; all figures are read from the monitor's stats."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


class MonitorObserver:
    """Base class of monitor observers; all methods do nothing. Override what you need.

    Callbacks run in the monitor's loop and must return quickly. An exception is logged, and the
    monitor continues.
    """

    def on_open(self, name: str, stats: Callable[[], Any]) -> None:
        """The monitor `name` has opened. `stats` may be called from any thread, also afterwards."""

    def on_polled(self, name: str) -> None:
        """The monitor has new figures."""

    def on_close(self, name: str) -> None:
        """The monitor was closed."""
