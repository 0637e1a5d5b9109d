"""Telemetry: metrics, traces and alert rules."""

from .._core.public import publish
from .observed import Metrics, Observed
from .prometheus import PrometheusObserver
from .rules import alert_rules
from .tracing import Tracing, traced

__all__ = ["Metrics", "Observed", "PrometheusObserver", "Tracing", "alert_rules", "traced"]

publish(__name__, *(globals()[name] for name in __all__))
