"""Metrics of queues and streams for OpenTelemetry, with the names of the tables."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from ..._core.public import publish
from ...telemetry.otel import OtelInstruments, otel_metrics_api
from ..records.monitor import QueueObserver, StreamObserver
from .prometheus import MonitorMetricsObserver
from .queue_metrics import QUEUES
from .stream_metrics import STREAM

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
        super().__init__(partial(OtelInstruments.of, meter_provider, QUEUES), name)


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
        super().__init__(partial(OtelInstruments.of, meter_provider, STREAM), name)


publish("sluicegate.postgres", OpenTelemetryQueueObserver, OpenTelemetryStreamObserver)
