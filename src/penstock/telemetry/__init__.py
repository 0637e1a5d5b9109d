"""Telemetry: metrics, traces and alert rules."""

from .._core.public import publish
from .observed import Metrics, Observed
from .prometheus import PrometheusObserver
from .rules import alert_rules
from .tracing import Tracing, traced

__all__ = ["Metrics", "Observed", "PrometheusObserver", "Tracing", "alert_rules", "traced"]

publish("penstock", Metrics, Observed, Tracing)
publish(__name__, PrometheusObserver, alert_rules, traced)
