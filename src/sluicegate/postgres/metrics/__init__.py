"""Metrics of streams and queues in PostgreSQL."""

from ..._core.public import publish_all
from .observers import (
    OpenTelemetryQueueObserver,
    OpenTelemetryStreamObserver,
    PrometheusQueueObserver,
    PrometheusStreamObserver,
)

__all__ = [
    "OpenTelemetryQueueObserver",
    "OpenTelemetryStreamObserver",
    "PrometheusQueueObserver",
    "PrometheusStreamObserver",
]

publish_all(__name__, "sluicegate.postgres")
