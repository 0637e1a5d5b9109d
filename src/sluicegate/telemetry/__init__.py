"""Telemetry: metrics, traces and alert rules."""

from typing import TYPE_CHECKING

from .._core.public import later, publish, publish_all
from .consumer_metrics import PrometheusConsumerObserver
from .observed import Metrics, Observed
from .prometheus import PrometheusObserver
from .queue_metrics import PrometheusQueueObserver
from .stream_metrics import PrometheusStreamObserver
from .tracing import Tracing, traced

if TYPE_CHECKING:
    from .consumer_otel import OpenTelemetryConsumerObserver
    from .consumer_tracing import ConsumerTracing
    from .otel_metrics import OpenTelemetryObserver
    from .queue_otel import OpenTelemetryQueueObserver
    from .rules import alert_rules
    from .stream_otel import OpenTelemetryStreamObserver
else:
    __getattr__, __dir__ = later(
        __name__,
        {
            "consumer_otel": ["OpenTelemetryConsumerObserver"],
            "consumer_tracing": ["ConsumerTracing"],
            "otel_metrics": ["OpenTelemetryObserver"],
            "queue_otel": ["OpenTelemetryQueueObserver"],
            "rules": ["alert_rules"],
            "stream_otel": ["OpenTelemetryStreamObserver"],
        },
    )

__all__ = [
    "ConsumerTracing",
    "Metrics",
    "Observed",
    "OpenTelemetryConsumerObserver",
    "OpenTelemetryObserver",
    "OpenTelemetryQueueObserver",
    "OpenTelemetryStreamObserver",
    "PrometheusConsumerObserver",
    "PrometheusObserver",
    "PrometheusQueueObserver",
    "PrometheusStreamObserver",
    "Tracing",
    "alert_rules",
    "traced",
]

publish("sluicegate", Metrics, Observed, Tracing)
publish_all(__name__)
