"""Telemetry: metrics, traces, alert rules and dashboards.

- `metric`: a metric as a row of a table; `batcher_metrics`, `consumer_metrics`: the tables.
- `observers`, `readings`: events and values of watched objects.
- `prometheus`, `otel`: the exporters.
- `data`: the alert rules and the dashboards.
- `tracing`, `consumer_tracing`: spans.
"""

from typing import TYPE_CHECKING

from .._core.public import later, publish_all
from .observers import Observed
from .prometheus import Metrics, PrometheusConsumerObserver, PrometheusObserver
from .tracing import Tracing, traced

if TYPE_CHECKING:
    from .consumer_tracing import ConsumerTracing
    from .data import alert_rules, grafana_dashboards
    from .otel import OpenTelemetryConsumerObserver, OpenTelemetryObserver
else:
    __getattr__, __dir__ = later(
        __name__,
        {
            "consumer_tracing": ["ConsumerTracing"],
            "data": ["alert_rules", "grafana_dashboards"],
            "otel": ["OpenTelemetryConsumerObserver", "OpenTelemetryObserver"],
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
    "grafana_dashboards",
    "traced",
]

publish_all(__name__)
