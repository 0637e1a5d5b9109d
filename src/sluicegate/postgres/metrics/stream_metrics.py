"""The metrics of logs of streams for Prometheus, with the names of `stream_definitions`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...telemetry.prometheus import PrometheusInstruments, require_prometheus
from ..records.monitor import StreamObserver
from .monitor_metrics import MonitorMetricsObserver
from .stream_definitions import STREAM

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry


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
        super().__init__(lambda: PrometheusInstruments.of(registry, STREAM), name=name)
