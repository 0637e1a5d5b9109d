"""The metrics of consumers for OpenTelemetry.

The semantic conventions for messaging count messages per process and per receive call. A consumer
that holds back, retries and parks messages has more states. So the names are those of
`consumer_definitions`, as for Prometheus.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .._core.public import publish
from .consumer_definitions import CONSUMER
from .consumer_metrics import LAG_EVERY, ConsumerMetricsObserver
from .otel_metrics import OtelInstruments, otel_metrics_api

if TYPE_CHECKING:
    from datetime import timedelta

    from opentelemetry.metrics import MeterProvider


class OpenTelemetryConsumerObserver(ConsumerMetricsObserver):
    """Metrics of consumers; the how-to page lists their names.

    Args:
        meter_provider: default: OpenTelemetry's global one.
        name: the attribute `name`; default: the consumer's.
        durations: as for `PrometheusConsumerObserver`; exemplars are the SDK's own.
        lag_every: seconds between two queries for the ends of the partitions, for the lag; `None`:
            no lag. Default 15.

    Raises `ConfigError` for a bad argument and `MissingExtra` without `opentelemetry`.
    """

    def __init__(
        self,
        meter_provider: MeterProvider | None = None,
        *,
        name: str | None = None,
        durations: bool = False,
        lag_every: float | timedelta | None = LAG_EVERY,
    ) -> None:
        otel_metrics_api("OpenTelemetryConsumerObserver")
        super().__init__(
            lambda: OtelInstruments.of(meter_provider, CONSUMER),
            name=name,
            durations=durations,
            exemplars=False,
            lag_every=lag_every,
        )


publish("sluicegate.telemetry", OpenTelemetryConsumerObserver)
