"""The metrics of queues for Prometheus, with the names of `queue_definitions`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...telemetry.prometheus import PrometheusInstruments, require_prometheus
from ..records.monitor import QueueObserver
from .monitor_metrics import MonitorMetricsObserver
from .queue_definitions import QUEUES

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry


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
        super().__init__(lambda: PrometheusInstruments.of(registry, QUEUES), name=name)
