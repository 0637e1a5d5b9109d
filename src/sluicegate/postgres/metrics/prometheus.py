"""Metrics of queues and streams for Prometheus, and the base of the observers for all exporters."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from ...telemetry.observers import ExportingObserver
from ...telemetry.prometheus import PrometheusInstruments, require_prometheus
from ..records.monitor import MonitorObserver, QueueObserver, StreamObserver
from .queue_metrics import QUEUES
from .stream_metrics import STREAM

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry


class MonitorMetricsObserver(ExportingObserver, MonitorObserver):
    """Observer that shows the figures of a monitor as metrics."""

    def on_polled(self, name: str) -> None:
        """Show new figures, for exporters that do not read them at a scrape."""
        self._instruments.refresh()

    def on_close(self, name: str) -> None:
        """Stop reading a closed monitor; its counts stay."""
        self._instruments.forget(self._name or name)


class PrometheusQueueObserver(MonitorMetricsObserver, QueueObserver):
    """Metrics of the queues of a schema, from a `QueueMonitor`; the reference page lists their names.

    Args:
        registry: a registry of `prometheus_client`; default: its global one.
        name: the label `name`; default: the monitor's.

    A scrape reads the figures of the monitor's last query, and never waits for the database. Raises
    `ConfigError` for a bad argument and `MissingExtra` without `prometheus_client`.
    """

    def __init__(
        self, registry: CollectorRegistry | None = None, *, name: str | None = None
    ) -> None:
        require_prometheus("PrometheusQueueObserver")
        super().__init__(partial(PrometheusInstruments.of, registry, QUEUES), name)


class PrometheusStreamObserver(MonitorMetricsObserver, StreamObserver):
    """Metrics of a log of streams, from a `StreamMonitor`; the reference page lists their names.

    Args:
        registry: a registry of `prometheus_client`; default: its global one.
        name: the label `name`; default: the monitor's.

    A scrape reads the figures of the monitor's last query, and never waits for the database. Raises
    `ConfigError` for a bad argument and `MissingExtra` without `prometheus_client`.
    """

    def __init__(
        self, registry: CollectorRegistry | None = None, *, name: str | None = None
    ) -> None:
        require_prometheus("PrometheusStreamObserver")
        super().__init__(partial(PrometheusInstruments.of, registry, STREAM), name)
