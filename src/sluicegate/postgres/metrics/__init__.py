"""Metrics of streams and queues in PostgreSQL."""

from typing import TYPE_CHECKING

from ..._core.public import later, publish_all
from .prometheus import PrometheusQueueObserver, PrometheusStreamObserver

if TYPE_CHECKING:
    from .otel import OpenTelemetryQueueObserver, OpenTelemetryStreamObserver
else:
    __getattr__, __dir__ = later(
        __name__,
        {
            "otel": ["OpenTelemetryQueueObserver", "OpenTelemetryStreamObserver"],
        },
    )

__all__ = [
    "OpenTelemetryQueueObserver",
    "OpenTelemetryStreamObserver",
    "PrometheusQueueObserver",
    "PrometheusStreamObserver",
]

publish_all(__name__, "sluicegate.postgres")
