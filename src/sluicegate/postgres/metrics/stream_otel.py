"""The metrics of logs of streams for OpenTelemetry, with the names of `stream_definitions`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..._core.public import publish
from ...telemetry.otel import OtelInstruments, otel_metrics_api
from ..records.monitor import StreamObserver
from .monitor_metrics import MonitorMetricsObserver
from .stream_definitions import STREAM

if TYPE_CHECKING:
    from opentelemetry.metrics import MeterProvider


class OpenTelemetryStreamObserver(MonitorMetricsObserver, StreamObserver):
    """Metrics of a log of streams, from a `StreamMonitor`; the reference page lists their names.

    Args:
        meter_provider: default: OpenTelemetry's global one.
        name: the attribute `name`; default: the monitor's.

    Raises `ConfigError` for a bad argument and `MissingExtra` without `opentelemetry`.
    """

    def __init__(
        self, meter_provider: MeterProvider | None = None, *, name: str | None = None
    ) -> None:
        otel_metrics_api("OpenTelemetryStreamObserver")
        super().__init__(lambda: OtelInstruments.of(meter_provider, STREAM), name=name)


publish("sluicegate.postgres", OpenTelemetryStreamObserver)
