"""Metrics of streams and queues in PostgreSQL."""

from typing import TYPE_CHECKING

from ..._core.public import later, publish_all
from .queue_metrics import PrometheusQueueObserver
from .stream_metrics import PrometheusStreamObserver

if TYPE_CHECKING:
    from .queue_otel import OpenTelemetryQueueObserver
    from .stream_otel import OpenTelemetryStreamObserver
else:
    __getattr__, __dir__ = later(
        __name__,
        {
            "queue_otel": ["OpenTelemetryQueueObserver"],
            "stream_otel": ["OpenTelemetryStreamObserver"],
        },
    )

__all__ = [
    "OpenTelemetryQueueObserver",
    "OpenTelemetryStreamObserver",
    "PrometheusQueueObserver",
    "PrometheusStreamObserver",
]

publish_all(__name__, "sluicegate.postgres")
