"""The common base of the monitor observers for all exporters."""

from __future__ import annotations

from ...telemetry.observers import ExportingObserver
from ..records.monitor import MonitorObserver


class MonitorMetricsObserver(ExportingObserver, MonitorObserver):
    """Observer that shows the figures of a monitor as metrics."""

    def on_polled(self, name: str) -> None:
        """Show new figures, for exporters that do not read them at a scrape."""
        self._instruments.refresh()

    def on_close(self, name: str) -> None:
        """Stop reading a closed monitor; its counts stay."""
        self._instruments.forget(self._name or name)
