"""Metrics for Prometheus.

A scrape runs in any thread, and may read a batcher in the middle of a step. It never fails because
of that, and no counter decreases: Prometheus would treat a decrease as a counter reset, and count
twice.

In multiprocess mode a scrape does not read batchers (`_Mirror`):

1. Each process writes values to its own files, and any process answers a scrape from all files. So
   states are gauges and totals are counters here, and `refresh` sets them.
2. A timer on the batcher's loop refreshes them every `REFRESH_SECONDS`. Events of a batcher refresh
   them immediately: opened, closed, broken, a change of the destination's state, an adaptation.
   There is no thread: while a loop is blocked, the states of its process do not change.
3. A total grows by its difference since the last refresh. So a process with the id of a dead
   process continues the counts in its file, without counting anything twice.
4. Gauges are of the kinds `livesum` and `livemax`: gauges of a dead process disappear with its
   file, which `prometheus_client.multiprocess.mark_process_dead` removes.
5. A forked child starts empty: its parent's batchers belong to the parent.
6. Series cannot be removed. The states of a closed batcher are 0.
"""

from __future__ import annotations

import asyncio
import os
import threading
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar
from weakref import WeakKeyDictionary

from .._core.extras import need
from .._core.outcome import Outcome
from .batcher_metrics import BATCHER, TENANT_ITEMS, TENANT_PENDING_ITEMS
from .consumer_metrics import CONSUMER
from .observers import LAG_EVERY, ConsumerMetricsObserver, MetricsObserver, Observed
from .readings import OTHER, Kept, StateReadings, Top, label_of

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
    from datetime import timedelta

    from prometheus_client import CollectorRegistry, Counter, Gauge
    from prometheus_client.core import Metric as Family

    from .metric import Catalogue, Labels, Metric
    from .readings import Series, StateReading

REFRESH_SECONDS = 1.0
"""Interval of the timer in multiprocess mode, in seconds."""


class PrometheusObserver(MetricsObserver):
    """Metrics of batchers or, with `Observed`, of sinks; the reference page lists their names.

    Args:
        registry: a registry of `prometheus_client`; default: its global one.
        name: the label `name`; default: the batcher's.
        exemplars: whether durations have the id of the current trace as an exemplar.
        tenants: the number of tenants with their own time series: in `batcher_tenant_items_total`
            the tenants with the most items, in `batcher_tenant_pending_items` those that fill a
            hundredth of the ledger, at most twenty; all others are `other`. Default 0: no tenants,
            and no such metrics. 20 is enough for the busy tenants.

    Costs nothing per item. Raises `MissingExtra` without `prometheus_client`.
    """

    def __init__(
        self,
        registry: CollectorRegistry | None = None,
        *,
        name: str | None = None,
        exemplars: bool = False,
        tenants: int = 0,
    ) -> None:
        find = partial(PrometheusInstruments.of, registry, BATCHER)
        super().__init__(find, name, exemplars=exemplars, tenants=tenants)
        require_prometheus("PrometheusObserver")


class Metrics(Observed):
    """`Observed(PrometheusObserver(name=...))`: sizes, durations, reasons and failures of the
    writes of the wrapped sink.

    Args:
        name: the label `name`; must differ from the batcher's if the batcher also has a
            `PrometheusObserver`.
        registry: a registry of `prometheus_client`; default: its global one.
        exemplars: whether durations have the id of the current trace as an exemplar; needs a
            `Tracing` further out in the stack, and scrapes in OpenMetrics format.

    Raises `ConfigError` for a bad argument and `MissingExtra` without `prometheus_client`.
    """

    def __init__(
        self, name: str, *, registry: CollectorRegistry | None = None, exemplars: bool = False
    ) -> None:
        super().__init__(PrometheusObserver(registry, name=name, exemplars=exemplars))


class PrometheusConsumerObserver(ConsumerMetricsObserver):
    """Metrics of consumers; the reference page lists their names.

    Args:
        registry: a registry of `prometheus_client`; default: its global one.
        name: the label `name`; default: the consumer's.
        durations: whether the duration of each turn of the handler is recorded in a histogram.
            Costs 3.5 µs per message or batch; everything else costs nothing per message.
        exemplars: whether durations have the id of the current trace as an exemplar; needs a
            `ConsumerTracing` before this observer, and scrapes in OpenMetrics format.
        lag_every: seconds between two queries for the ends of the partitions, for the lag; `None`:
            no lag. Default 15.

    Raises `ConfigError` for a bad argument and `MissingExtra` without `prometheus_client`.
    """

    def __init__(
        self,
        registry: CollectorRegistry | None = None,
        *,
        name: str | None = None,
        durations: bool = False,
        exemplars: bool = False,
        lag_every: float | timedelta | None = LAG_EVERY,
    ) -> None:
        require_prometheus("PrometheusConsumerObserver")
        super().__init__(
            partial(PrometheusInstruments.of, registry, CONSUMER),
            name=name,
            durations=durations,
            exemplars=exemplars,
            lag_every=lag_every,
        )


def require_prometheus(user: str) -> None:
    """Raise `MissingExtra`, which names `user`, if the client is not installed."""
    need("prometheus_client", "prometheus", user)


@contextmanager
def serving_metrics(host: str, port: int) -> Generator[None]:
    """Serve the metrics of the global registry over HTTP. Raises `OSError`."""
    from prometheus_client import start_http_server

    server, thread = start_http_server(port, host)
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class PrometheusInstruments:
    """The metrics of one registry for one kind of object, shared by its observers."""

    _known: ClassVar[WeakKeyDictionary[CollectorRegistry, dict[str, PrometheusInstruments]]] = (
        WeakKeyDictionary()
    )
    _lock = threading.Lock()

    def __init__(self, registry: CollectorRegistry, catalogue: Catalogue) -> None:
        self._registry = registry
        self._events = {metric.name: _event(metric, registry) for metric in catalogue.events}
        self._at_zero = [
            (metric, labels) for metric in catalogue.events for labels in metric.first_series
        ]
        self._children: dict[tuple[str, Labels], Any] = {}
        self._tops: dict[str, Top] = {}
        self._kept: dict[str, Kept] = {}
        self._is_multiprocess = is_multiprocess()
        self.states: _Collector | _Mirror
        """The states and totals: read at a scrape, or written by a timer in multiprocess mode."""
        if self._is_multiprocess:
            self.states = _Mirror(registry, catalogue)
        else:
            self.states = _Collector(catalogue)
            registry.register(self.states)

    @classmethod
    def of(cls, registry: CollectorRegistry | None, catalogue: Catalogue) -> PrometheusInstruments:
        """Return the metrics of a registry, created at the first use."""
        from prometheus_client import REGISTRY

        used = REGISTRY if registry is None else registry
        with cls._lock:
            known = cls._known.setdefault(used, {})
            if catalogue.name not in known:
                known[catalogue.name] = cls(used, catalogue)
            return known[catalogue.name]

    def begin(self, name: str) -> None:
        """Start the loss counters at 0."""
        for metric, labels in self._at_zero:
            self._child(metric, (name, *labels))

    def count(self, metric: Metric, labels: Labels, number: int) -> None:
        """Add to a counter."""
        self._child(metric, labels).inc(number)

    def observe(
        self, metric: Metric, labels: Labels, value: float, trace: str | None = None
    ) -> None:
        """Add a value to a histogram, with the id of its trace as an exemplar."""
        self._child(metric, labels).observe(value, {"trace_id": trace} if trace else None)

    def _child(self, metric: Metric, labels: Labels) -> Any:
        """Return the series with these labels; cached, since each look-up takes a lock."""
        key = (metric.name, labels)
        found = self._children.get(key)
        if found is None:
            found = self._children[key] = self._events[metric.name].labels(*labels)
        return found

    def count_tenant(
        self, name: str, tenant: object, outcome: Outcome, items: int, most: int
    ) -> None:
        """Count items of a tenant by outcome; at most `most` tenants of a name are shown."""
        if TENANT_ITEMS.name not in self._events:
            self._events[TENANT_ITEMS.name] = _event(TENANT_ITEMS, self._registry)
        family = self._events[TENANT_ITEMS.name]
        top = self._tops.setdefault(name, Top(most))
        own = label_of(tenant)
        hidden = top.seen(own, items)
        shown = top.label(own)
        if self._is_multiprocess:
            if shown != OTHER:
                shown = self._kept.setdefault(name, Kept(most)).label(shown)
        elif hidden is not None:
            for each in Outcome:
                family.labels(name, hidden, each.value)  # only an existing series can be removed
                family.remove(name, hidden, each.value)
        family.labels(name, shown, outcome.value).inc(items)

    def watch(self, name: str, stats: Callable[[], Any], *, tenants: int) -> None:
        """Start showing the states of this batcher."""
        self.states.watch(name, stats, tenants=tenants)

    def forget(self, name: str) -> None:
        """Stop showing the states of the closed batchers of this name."""
        self.states.forget(name)

    def refresh(self) -> None:
        """Update the states if they are not read at a scrape."""
        if isinstance(self.states, _Mirror):
            self.states.refresh()


def is_multiprocess() -> bool:
    """Return whether `prometheus_client` writes values to files; it decides this at its import."""
    from prometheus_client import values

    return values.ValueClass is not values.MutexValue


def _event(metric: Metric, registry: CollectorRegistry) -> Any:
    from prometheus_client import Counter, Histogram

    if metric.kind == "counter":
        return Counter(metric.name, metric.text, metric.all_labels, registry=registry)
    return Histogram(
        metric.name, metric.text, metric.all_labels, buckets=metric.buckets, registry=registry
    )


class _Collector:
    """Collector of a single process: reads the open batchers or consumers at each scrape."""

    def __init__(self, catalogue: Catalogue) -> None:
        self._catalogue = catalogue
        self._readings = StateReadings(catalogue)
        self.watch = self._readings.watch
        self.forget = self._readings.forget

    def describe(self) -> Iterable[Family]:
        """Return no metrics: registering must not read a batcher."""
        return ()

    def collect(self) -> Iterator[Family]:
        """Yield every family with its samples."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        found = self._readings.read()
        for state in self._catalogue.states:
            gauge = GaugeMetricFamily(state.name, state.text, labels=state.all_labels)
            for reading in found:
                for labels, value in reading.of(state).items():
                    gauge.add_metric([reading.name, *labels], value)
            yield gauge
        if self._readings.shows_tenants:
            pending = TENANT_PENDING_ITEMS
            gauge = GaugeMetricFamily(pending.name, pending.text, labels=pending.all_labels)
            for reading in found:
                for tenant, inside in reading.inside_by_tenant().items():
                    gauge.add_metric([reading.name, tenant], inside)
            yield gauge
        for total in self._catalogue.totals:
            counter = CounterMetricFamily(total.name, total.text, labels=total.all_labels)
            for reading in found:
                for labels, count in reading.total(total).items():
                    counter.add_metric([reading.name, *labels], count)
            yield counter


class _Mirror:
    """Gauges and counters that follow the batchers or consumers of this process."""

    def __init__(self, registry: CollectorRegistry, catalogue: Catalogue) -> None:
        self._registry = registry
        self._catalogue = catalogue
        self._readings = StateReadings(catalogue)
        self._gauges: dict[str, Gauge] = {
            state.name: self._gauge(state) for state in catalogue.states
        }
        self._counters: dict[str, Counter] = {
            total.name: _event(total, registry) for total in catalogue.totals
        }
        self._counted: dict[tuple[str, Series], int] = {}
        self._shown: dict[str, set[Series]] = {}
        self._kept: dict[str, Kept] = {}
        self._timers: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.TimerHandle] = (
            WeakKeyDictionary()
        )
        self._process = os.getpid()
        self._lock = threading.RLock()

    def _gauge(self, metric: Metric) -> Gauge:
        from prometheus_client import Gauge

        return Gauge(
            metric.name,
            metric.text,
            metric.all_labels,
            registry=self._registry,
            multiprocess_mode="livemax" if metric.kind == "max" else "livesum",
        )

    def watch(self, name: str, stats: Callable[[], Any], *, tenants: int) -> None:
        """Start following this batcher, with a timer on the running loop."""
        self._restart_in_a_child()
        with self._lock:
            self._readings.watch(name, stats, tenants=tenants)
            if tenants and TENANT_PENDING_ITEMS.name not in self._gauges:
                self._gauges[TENANT_PENDING_ITEMS.name] = self._gauge(TENANT_PENDING_ITEMS)
            self._kept.setdefault(name, Kept(tenants))
        self.refresh()
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return  # without a loop there are no batches either
        if loop not in self._timers:
            self._set_timer(loop)

    def forget(self, name: str) -> None:
        """Write the last totals of the closed batchers of this name; their states become 0."""
        self.refresh()
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return  # without a loop there is no timer either
        if not self._readings.has_open:  # the timers of other loops end by themselves
            timer = self._timers.pop(loop, None)
            if timer is not None:
                timer.cancel()

    def refresh(self) -> None:
        """Write the current states and totals."""
        self._restart_in_a_child()
        with self._lock:
            for reading in self._readings.read():
                self._write_states(reading)
                self._write_totals(reading)

    def _set_timer(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timers[loop] = loop.call_later(REFRESH_SECONDS, partial(self._tick, loop))

    def _tick(self, loop: asyncio.AbstractEventLoop) -> None:
        self.refresh()
        if self._readings.has_open:
            self._set_timer(loop)
        else:
            self._timers.pop(loop, None)

    def _restart_in_a_child(self) -> None:
        if self._process != os.getpid():
            self._process = os.getpid()
            self._lock = threading.RLock()  # a thread of the parent may have held it
            self._readings = StateReadings(self._catalogue)
            self._timers.clear()
            for held in (self._counted, self._shown, self._kept):
                held.clear()

    def _write_states(self, reading: StateReading) -> None:
        states = {
            (state.name, labels): value
            for state in self._catalogue.states
            for labels, value in reading.of(state).items()
        }
        for tenant, inside in self._inside_by_tenant(reading).items():
            states[TENANT_PENDING_ITEMS.name, (tenant,)] = inside
        shown = self._shown.setdefault(reading.name, set())
        for gone in shown - states.keys():
            states[gone] = 0
        shown.update(states)
        for (metric, labels), value in states.items():
            self._gauges[metric].labels(reading.name, *labels).set(value)

    def _inside_by_tenant(self, reading: StateReading) -> Mapping[str, int]:
        found: dict[str, int] = {}
        for tenant, inside in reading.inside_by_tenant().items():
            shown = OTHER if tenant == OTHER else self._kept[reading.name].label(tenant)
            found[shown] = found.get(shown, 0) + inside
        return found

    def _write_totals(self, reading: StateReading) -> None:
        for (metric, labels), count in reading.counts.items():
            series = (reading.name, (metric, labels))
            more = count - self._counted.get(series, 0)
            child = self._counters[metric].labels(reading.name, *labels)
            if more > 0:
                child.inc(more)
                self._counted[series] = count
