"""The Prometheus collector of a single process: states and totals, read at each scrape."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .definitions import PENDING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from typing import Any

    from prometheus_client.core import Metric

    from .measures import Catalogue, Measure
    from .readings import StateReading, StateReadings


class StateCollector:
    """Collector that reads the open batchers or consumers at each scrape."""

    def __init__(self, readings: StateReadings, catalogue: Catalogue) -> None:
        self._readings = readings
        self._catalogue = catalogue

    def watch(self, name: str, stats: Callable[[], Any], *, tenants: int) -> None:
        """Start reading this batcher."""
        self._readings.watch(name, stats, tenants=tenants)

    def forget(self, name: str) -> None:
        """Stop reading the closed batchers of this name."""
        self._readings.forget(name)

    def refresh(self) -> None:
        """Do nothing: each scrape reads the current values."""

    def describe(self) -> Iterable[Metric]:
        """Return no metrics: registering must not read a batcher."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """Yield every family, with its samples by name."""
        found = self._readings.read()
        yield from _gauges(found, self._catalogue.states)
        if self._readings.shows_tenants:
            yield _pending(found)
        yield from _counters(found, self._catalogue.totals)


def _gauges(found: Sequence[StateReading], states: Sequence[Measure]) -> Iterator[Metric]:
    from prometheus_client.core import GaugeMetricFamily

    for measure in states:
        family = measure.family
        gauge = GaugeMetricFamily(family.name, family.text, labels=family.all_labels)
        for reading in found:
            for labels, value in reading.of(measure).items():
                gauge.add_metric([reading.name, *labels], value)
        yield gauge


def _counters(found: Sequence[StateReading], totals: Sequence[Measure]) -> Iterator[Metric]:
    from prometheus_client.core import CounterMetricFamily

    for measure in totals:
        family = measure.family
        counter = CounterMetricFamily(family.name, family.text, labels=family.all_labels)
        for reading in found:
            for labels, value in reading.total(measure).items():
                counter.add_metric([reading.name, *labels], value)
        yield counter


def _pending(found: Sequence[StateReading]) -> Metric:
    from prometheus_client.core import GaugeMetricFamily

    pending = GaugeMetricFamily(PENDING.name, PENDING.text, labels=PENDING.all_labels)
    for reading in found:
        for tenant, inside in reading.inside_by_tenant().items():
            pending.add_metric([reading.name, tenant], inside)
    return pending
