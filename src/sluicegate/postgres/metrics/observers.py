"""The observers of monitors that show the figures as metrics, for each exporter."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from ..._core import checks
from ...telemetry.otel import OtelInstruments, otel_metrics_api
from ...telemetry.prometheus import PrometheusInstruments, require_prometheus
from ..records.monitor import MonitorObserver, QueueObserver, StreamObserver
from .queue_definitions import QUEUES
from .stream_definitions import STREAM

if TYPE_CHECKING:
    from collections.abc import Callable

    from opentelemetry.metrics import MeterProvider
    from prometheus_client import CollectorRegistry

    from ...telemetry.metric import Catalogue
    from ...telemetry.observers import Instruments


class MonitorMetricsObserver(MonitorObserver):
    """Observer that shows the figures of a monitor as metrics."""

    _catalogue: ClassVar[Catalogue]

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


class _ByPrometheus(MonitorMetricsObserver):
    def __init__(
        self, registry: CollectorRegistry | None = None, *, name: str | None = None
    ) -> None:
        require_prometheus(type(self).__name__)
        super().__init__(lambda: PrometheusInstruments.of(registry, self._catalogue), name=name)


class _ByOpenTelemetry(MonitorMetricsObserver):
    def __init__(
        self, meter_provider: MeterProvider | None = None, *, name: str | None = None
    ) -> None:
        otel_metrics_api(type(self).__name__)
        super().__init__(lambda: OtelInstruments.of(meter_provider, self._catalogue), name=name)


class PrometheusQueueObserver(_ByPrometheus, QueueObserver):
    """Metrics of the queues of a schema, from a `QueueMonitor`; the reference page lists their names.

    Args:
        registry: a registry of `prometheus_client`; default: its global one.
        name: the label `name`; default: the monitor's.

    A scrape reads the figures of the monitor's last query, and never waits for the database. Raises
    `ConfigError` for a bad argument and `MissingExtra` without `prometheus_client`.
    """

    _catalogue = QUEUES


class PrometheusStreamObserver(_ByPrometheus, StreamObserver):
    """Metrics of a log of streams, from a `StreamMonitor`; the reference page lists their names.

    Args:
        registry: a registry of `prometheus_client`; default: its global one.
        name: the label `name`; default: the monitor's.

    A scrape reads the figures of the monitor's last query, and never waits for the database. Raises
    `ConfigError` for a bad argument and `MissingExtra` without `prometheus_client`.
    """

    _catalogue = STREAM


class OpenTelemetryQueueObserver(_ByOpenTelemetry, QueueObserver):
    """Metrics of the queues of a schema, from a `QueueMonitor`; the reference page lists their names.

    Args:
        meter_provider: default: OpenTelemetry's global one.
        name: the attribute `name`; default: the monitor's.

    Raises `ConfigError` for a bad argument and `MissingExtra` without `opentelemetry`.
    """

    _catalogue = QUEUES


class OpenTelemetryStreamObserver(_ByOpenTelemetry, StreamObserver):
    """Metrics of a log of streams, from a `StreamMonitor`; the reference page lists their names.

    Args:
        meter_provider: default: OpenTelemetry's global one.
        name: the attribute `name`; default: the monitor's.

    Raises `ConfigError` for a bad argument and `MissingExtra` without `opentelemetry`.
    """

    _catalogue = STREAM
