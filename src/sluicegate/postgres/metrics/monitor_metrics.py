"""The common base of the monitor observers for all exporters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..._core import checks
from ..records.monitor import MonitorObserver

if TYPE_CHECKING:
    from collections.abc import Callable

    from ...telemetry.observers import Instruments


class MonitorMetricsObserver(MonitorObserver):
    """Observer that shows the figures of a monitor as metrics."""

    def __init__(self, find: Callable[[], Instruments], *, name: str | None) -> None:
        self._find = find
        self._name = None if name is None else checks.text("name", name)
        self._found: Instruments | None = None

    @property
    def _instruments(self) -> Instruments:
        if self._found is None:
            self._found = self._find()
        return self._found

    def on_open(self, name: str, stats: Callable[[], Any]) -> None:
        """Show the figures of this monitor."""
        self._instruments.watch(self._name or name, stats, tenants=0)

    def on_polled(self, name: str) -> None:
        """Show new figures, for exporters that do not read them at a scrape."""
        self._instruments.refresh()

    def on_close(self, name: str) -> None:
        """Stop reading a closed monitor; its counts stay."""
        self._instruments.forget(self._name or name)

    def __repr__(self) -> str:
        given = "" if self._name is None else f"name={self._name!r}"
        return f"{type(self).__name__}({given})"
