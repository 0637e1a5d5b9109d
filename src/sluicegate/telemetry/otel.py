"""Metrics for OpenTelemetry.

1. Names, units and meanings are those of the tables, as for Prometheus. OpenTelemetry has no
   conventions for batches to arbitrary destinations: those for messaging clients require a messaging
   system, and count messages per process and per receive call. A consumer that holds back, retries
   and parks messages has more states. Only their attribute `error.type` is used.
2. Events are recorded when they happen. States and totals are observable instruments, read by the
   SDK's thread; `Batcher.stats` is thread-safe. Each is read separately, so one total may be
   slightly ahead of another.
3. An SDK keeps every set of attributes, so the number of shown tenants is limited over the
   process's life (`Kept`).
"""

from __future__ import annotations

import threading
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar
from weakref import WeakKeyDictionary

from .._core.extras import need
from .._core.public import publish
from .batcher_metrics import BATCHER, TENANT_ITEMS, TENANT_PENDING_ITEMS
from .consumer_metrics import CONSUMER
from .observers import LAG_EVERY, ConsumerMetricsObserver, MetricsObserver
from .readings import OTHER, Kept, StateReading, StateReadings, Top, label_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from datetime import timedelta

    from opentelemetry.metrics import CallbackOptions, MeterProvider, Observation

    from .._core.outcome import Outcome
    from .metric import Catalogue, Labels, Metric

_ATTRIBUTES = {"error_type": "error.type"}


class OpenTelemetryObserver(MetricsObserver):
    """Metrics of batchers or, with `Observed`, of sinks; the reference page lists their names.

    Args:
        meter_provider: default: OpenTelemetry's global one.
        name: the attribute `name`; default: the batcher's.
        tenants: the number of tenants with their own attributes, as for `PrometheusObserver`; over
            its life a process shows at most ten times as many. Default 0.

    Costs nothing per item. Exemplars are the SDK's own. Raises `MissingExtra` without
    `opentelemetry`.
    """

    def __init__(
        self,
        meter_provider: MeterProvider | None = None,
        *,
        name: str | None = None,
        tenants: int = 0,
    ) -> None:
        find = partial(OtelInstruments.of, meter_provider, BATCHER)
        super().__init__(find, name, exemplars=False, tenants=tenants)
        otel_metrics_api()


class OpenTelemetryConsumerObserver(ConsumerMetricsObserver):
    """Metrics of consumers; the reference page lists their names.

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
            partial(OtelInstruments.of, meter_provider, CONSUMER),
            name=name,
            durations=durations,
            exemplars=False,
            lag_every=lag_every,
        )


class OtelInstruments:
    """The instruments of one meter provider for one kind of object, shared by its observers."""

    _known: ClassVar[WeakKeyDictionary[MeterProvider, dict[str, OtelInstruments]]] = (
        WeakKeyDictionary()
    )
    _lock = threading.Lock()

    def __init__(self, provider: MeterProvider, catalogue: Catalogue) -> None:
        meter: Any = otel_metrics_api().get_meter("sluicegate", meter_provider=provider)
        self._readings = StateReadings(catalogue)
        self._at_zero = [
            (metric, labels)
            for metric in catalogue.events
            if metric.kind == "counter"  # a histogram has no value for 0 items
            for labels in metric.first_series
        ]
        self._recorders: dict[str, Callable[..., None]] = {}
        for metric in catalogue.events:
            self._record(meter, metric)
        for state in catalogue.states:
            if state.kind == "max":
                _observe(meter.create_observable_gauge, state, self._read(state, StateReading.of))
            else:
                make = meter.create_observable_up_down_counter
                _observe(make, state, self._read(state, StateReading.of))
        for total in catalogue.totals:
            make = meter.create_observable_counter
            _observe(make, total, self._read(total, StateReading.total))
        if catalogue.by_tenant:
            items, pending = catalogue.by_tenant
            self._record(meter, items)
            _observe(meter.create_observable_up_down_counter, pending, self._pending)
        self._tops: dict[str, tuple[Top, Kept]] = {}
        self._kept_pending: dict[str, Kept] = {}

    def _record(self, meter: Any, metric: Metric) -> None:
        given = (metric.otel_name, metric.unit, metric.text)
        if metric.kind == "counter":
            self._recorders[metric.name] = meter.create_counter(*given).add
        else:
            buckets = metric.buckets
            histogram = meter.create_histogram(*given, explicit_bucket_boundaries_advisory=buckets)
            self._recorders[metric.name] = histogram.record

    @classmethod
    def of(cls, provider: MeterProvider | None, catalogue: Catalogue) -> OtelInstruments:
        """Return the instruments of a provider, created at the first use."""
        used = otel_metrics_api().get_meter_provider() if provider is None else provider
        with cls._lock:
            known = cls._known.setdefault(used, {})
            if catalogue.name not in known:
                known[catalogue.name] = cls(used, catalogue)
            return known[catalogue.name]

    def begin(self, name: str) -> None:
        """Start the loss counters at 0."""
        for metric, labels in self._at_zero:
            self.count(metric, (name, *labels), 0)

    def count(self, metric: Metric, labels: Labels, number: int) -> None:
        """Add to a counter."""
        self._recorders[metric.name](number, _attributes(metric, labels))

    def observe(
        self, metric: Metric, labels: Labels, value: float, trace: str | None = None
    ) -> None:
        """Add a value to a histogram; the SDK adds its exemplar."""
        self._recorders[metric.name](value, _attributes(metric, labels))

    def count_tenant(
        self, name: str, tenant: object, outcome: Outcome, items: int, most: int
    ) -> None:
        """Count items of a tenant by outcome."""
        if name not in self._tops:
            self._tops[name] = (Top(most), Kept(most))
        top, kept = self._tops[name]
        own = label_of(tenant)
        top.seen(own, items)
        shown = top.label(own)
        if shown != OTHER:
            shown = kept.label(shown)
        self.count(TENANT_ITEMS, (name, shown, outcome.value), items)

    def watch(self, name: str, stats: Callable[[], Any], *, tenants: int) -> None:
        """Start observing this batcher."""
        self._kept_pending.setdefault(name, Kept(tenants))
        self._readings.watch(name, stats, tenants=tenants)

    def forget(self, name: str) -> None:
        """Stop observing the closed batchers of this name."""
        self._readings.forget(name)

    def refresh(self) -> None:
        """Do nothing: the SDK reads the values."""

    def _read(
        self, metric: Metric, values: Callable[[StateReading, Metric], Mapping[Labels, float]]
    ) -> Callable[[CallbackOptions], Iterator[Observation]]:
        def read(_: CallbackOptions) -> Iterator[Observation]:
            for reading in self._readings.read():
                for labels, value in values(reading, metric).items():
                    yield _observation(value, metric, (reading.name, *labels))

        return read

    def _pending(self, _: CallbackOptions) -> Iterator[Observation]:
        for reading in self._readings.read():
            found: dict[str, int] = {}
            kept = self._kept_pending[reading.name]
            for tenant, inside in reading.inside_by_tenant().items():
                shown = tenant if tenant == OTHER else kept.label(tenant)
                found[shown] = found.get(shown, 0) + inside
            for shown, inside in found.items():
                yield _observation(inside, TENANT_PENDING_ITEMS, (reading.name, shown))


def _observe(make: Callable[..., object], metric: Metric, callback: Callable[..., Any]) -> None:
    make(metric.otel_name, [callback], metric.unit, metric.text)


def _attributes(metric: Metric, labels: Labels) -> dict[str, str]:
    names = (_ATTRIBUTES.get(label, label) for label in metric.all_labels)
    return dict(zip(names, labels, strict=True))


def _observation(value: float, metric: Metric, labels: Labels) -> Observation:
    from opentelemetry.metrics import Observation

    return Observation(value, _attributes(metric, labels))


def otel_metrics_api(user: str = "OpenTelemetryObserver") -> Any:
    """Return OpenTelemetry's metrics API. Raises `MissingExtra`, which names `user`, without it."""
    need("opentelemetry", "otel", user)
    from opentelemetry import metrics

    return metrics


publish("sluicegate.telemetry", OpenTelemetryObserver, OpenTelemetryConsumerObserver)
