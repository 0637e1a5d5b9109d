"""The observer for OpenTelemetry's metrics.

1. Names, units and meanings are in `definitions`. OpenTelemetry has no conventions for batches to
   arbitrary destinations: those for messaging clients require a messaging system and count
   messages, not batches. Only their attribute `error.type` is used.
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
from ._tenants import OTHER, Kept, Top, label_of
from .definitions import BATCHER, PENDING, TENANT_ITEMS
from .event_observer import Instruments, MetricsObserver
from .readings import StateReadings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from opentelemetry.metrics import CallbackOptions, MeterProvider, Observation

    from .._core.outcome import Outcome
    from .measures import Catalogue, Family, Measure

_ATTRIBUTES = {"error_type": "error.type"}


class OpenTelemetryObserver(MetricsObserver):
    """Metrics of batchers or, with `Observed`, of sinks; the how-to page lists their names.

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
        super().__init__(name, exemplars=False, tenants=tenants)
        otel_metrics_api()
        self._provider = meter_provider

    def _find(self) -> Instruments:
        return OtelInstruments.of(self._provider)


class OtelInstruments:
    """The instruments of one meter provider, for batchers or for consumers, shared by its
    observers.
    """

    _known: ClassVar[WeakKeyDictionary[MeterProvider, dict[str, OtelInstruments]]] = (
        WeakKeyDictionary()
    )
    _lock = threading.Lock()

    def __init__(self, provider: MeterProvider, catalogue: Catalogue) -> None:
        meter: Any = otel_metrics_api().get_meter("sluicegate", meter_provider=provider)
        self._at_zero = catalogue.at_zero
        self._readings = StateReadings(catalogue)
        self._recorders: dict[str, Callable[..., None]] = {}
        for family in catalogue.histograms:
            told = (family.otel_name, family.unit, family.text)
            made = meter.create_histogram(*told, explicit_bucket_boundaries_advisory=family.buckets)
            self._recorders[family.name] = made.record
        tenants = (TENANT_ITEMS,) if catalogue.has_tenants else ()
        for family in (*catalogue.counters, *tenants):
            made = meter.create_counter(family.otel_name, family.unit, family.text)
            self._recorders[family.name] = made.add
        for measure in catalogue.states:
            if measure.is_greatest:
                _observe(meter.create_observable_gauge, measure.family, self._state, measure)
            else:
                make = meter.create_observable_up_down_counter
                _observe(make, measure.family, self._state, measure)
        for measure in catalogue.totals:
            _observe(meter.create_observable_counter, measure.family, self._total, measure)
        if catalogue.has_tenants:
            _observe(meter.create_observable_up_down_counter, PENDING, self._pending)
        self._tops: dict[str, tuple[Top, Kept]] = {}
        self._kept_pending: dict[str, Kept] = {}

    def begin(self, name: str) -> None:
        """Start the loss counters at 0."""
        for family, labels in self._at_zero:
            if not family.buckets:  # a histogram has no value for 0 items
                self.count(family, (name, *labels), 0)

    def count(self, family: Family, labels: tuple[str, ...], number: int) -> None:
        """Add to a counter."""
        self._recorders[family.name](number, _attributes(family, labels))

    def observe(
        self, family: Family, labels: tuple[str, ...], value: float, trace: str | None = None
    ) -> None:
        """Add a value to a histogram; the SDK adds its exemplar."""
        self._recorders[family.name](value, _attributes(family, labels))

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

    def _state(self, measure: Measure, _: CallbackOptions) -> Iterator[Observation]:
        for reading in self._readings.read():
            for labels, value in reading.of(measure).items():
                yield _observation(value, measure.family, (reading.name, *labels))

    def _total(self, measure: Measure, _: CallbackOptions) -> Iterator[Observation]:
        for reading in self._readings.read():
            for labels, value in reading.total(measure).items():
                yield _observation(value, measure.family, (reading.name, *labels))

    def _pending(self, _: CallbackOptions) -> Iterator[Observation]:
        for reading in self._readings.read():
            found: dict[str, int] = {}
            kept = self._kept_pending[reading.name]
            for tenant, inside in reading.inside_by_tenant().items():
                shown = tenant if tenant == OTHER else kept.label(tenant)
                found[shown] = found.get(shown, 0) + inside
            for shown, inside in found.items():
                yield _observation(inside, PENDING, (reading.name, shown))

    @classmethod
    def of(cls, provider: MeterProvider | None, catalogue: Catalogue = BATCHER) -> OtelInstruments:
        """Return the instruments of a provider, created at the first use."""
        used = otel_metrics_api().get_meter_provider() if provider is None else provider
        with cls._lock:
            known = cls._known.setdefault(used, {})
            if catalogue.name not in known:
                known[catalogue.name] = cls(used, catalogue)
            return known[catalogue.name]


def _observe(
    make: Callable[..., object], family: Family, callback: Callable[..., Any], *given: object
) -> None:
    make(family.otel_name, [partial(callback, *given)], family.unit, family.text)


def _attributes(family: Family, labels: tuple[str, ...]) -> dict[str, str]:
    names = (_ATTRIBUTES.get(label, label) for label in family.all_labels)
    return dict(zip(names, labels, strict=True))


def _observation(value: float, family: Family, labels: tuple[str, ...]) -> Observation:
    from opentelemetry.metrics import Observation

    return Observation(value, _attributes(family, labels))


def otel_metrics_api(user: str = "OpenTelemetryObserver") -> Any:
    """Return OpenTelemetry's metrics API. Raises `MissingExtra`, which names `user`, without it."""
    need("opentelemetry", "otel", user)
    from opentelemetry import metrics

    return metrics


publish("sluicegate.telemetry", OpenTelemetryObserver)
