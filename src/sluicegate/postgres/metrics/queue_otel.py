"""The metrics of queues for OpenTelemetry, with the names of `queue_definitions`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..._core.public import publish
from ...telemetry.otel import OtelInstruments, otel_metrics_api
from ..records.monitor import QueueObserver
from .monitor_metrics import MonitorMetricsObserver
from .queue_definitions import QUEUES

if TYPE_CHECKING:
    from opentelemetry.metrics import MeterProvider


class OpenTelemetryQueueObserver(MonitorMetricsObserver, QueueObserver):
    """Metrics of the queues of a schema, from a `QueueMonitor`; the reference page lists their names.

    Args:
        meter_provider: default: OpenTelemetry's global one.
        name: the attribute `name`; default: the monitor's.

    Raises `ConfigError` for a bad argument and `MissingExtra` without `opentelemetry`.
    """

    def __init__(
        self, meter_provider: MeterProvider | None = None, *, name: str | None = None
    ) -> None:
        otel_metrics_api("OpenTelemetryQueueObserver")
        super().__init__(lambda: OtelInstruments.of(meter_provider, QUEUES), name=name)


publish("sluicegate.postgres", OpenTelemetryQueueObserver)
