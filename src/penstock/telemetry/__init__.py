"""Telemetry: metrics, traces and alert rules."""

from typing import TYPE_CHECKING

from .._core.public import later, publish
from .observed import Metrics, Observed
from .prometheus import PrometheusObserver
from .tracing import Tracing, traced

if TYPE_CHECKING:
    from .otel_metrics import OpenTelemetryObserver
    from .rules import alert_rules
else:
    __getattr__, __dir__ = later(
        __name__, {"otel_metrics": ["OpenTelemetryObserver"], "rules": ["alert_rules"]}
    )

__all__ = [
    "Metrics",
    "Observed",
    "OpenTelemetryObserver",
    "PrometheusObserver",
    "Tracing",
    "alert_rules",
    "traced",
]

publish("penstock", Metrics, Observed, Tracing)
publish(__name__, PrometheusObserver, traced)
