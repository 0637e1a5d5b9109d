"""Telemetry: metrics, traces and alert rules."""

from typing import TYPE_CHECKING

from .._core.public import later, publish_all
from .consumer_metrics import PrometheusConsumerObserver
from .observed import Metrics, Observed
from .prometheus import PrometheusObserver
from .tracing import Tracing, traced

if TYPE_CHECKING:
    from .consumer_otel import OpenTelemetryConsumerObserver
    from .consumer_tracing import ConsumerTracing
    from .otel_metrics import OpenTelemetryObserver
    from .rules import alert_rules
else:
    __getattr__, __dir__ = later(
        __name__,
        {
            "consumer_otel": ["OpenTelemetryConsumerObserver"],
            "consumer_tracing": ["ConsumerTracing"],
            "otel_metrics": ["OpenTelemetryObserver"],
            "rules": ["alert_rules"],
        },
    )

__all__ = [
    "ConsumerTracing",
    "Metrics",
    "Observed",
    "OpenTelemetryConsumerObserver",
    "OpenTelemetryObserver",
    "PrometheusConsumerObserver",
    "PrometheusObserver",
    "Tracing",
    "alert_rules",
    "traced",
]

publish_all(__name__)
