"""Watching a monitor: two synchronous callbacks; everything else is read from its stats."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


class MonitorObserver:
    """A watcher of a monitor that does nothing; override what you need.

    Callbacks run in the monitor's loop and must return quickly. One that raises is logged, and the
    monitor goes on.
    """

    def on_open(self, name: str, stats: Callable[[], Any]) -> None:
        """The monitor `name` was opened. `stats` may be called from any thread, also afterwards."""

    def on_looked(self, name: str) -> None:
        """The monitor has new figures."""

    def on_close(self, name: str) -> None:
        """The monitor was closed."""
