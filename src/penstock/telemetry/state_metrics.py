"""Gauges and counters read from open batchers at each scrape."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from inspect import ismethod
from typing import TYPE_CHECKING, Any
from weakref import WeakMethod

from .._core.condition import DestinationState
from .._core.outcome import Outcome
from ._tenants import OTHER, label_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from prometheus_client.core import Metric

logger = logging.getLogger("penstock.telemetry")

_ENDED = {"closed", "forked"}

_PENDING = (
    "Items inside of the tenants that fill a hundredth of the ledger or more, and of "
    "all others as other."
)

_GAUGES: tuple[tuple[str, str, Callable[[Any], float]], ...] = (
    (
        "batcher_queue_depth",
        "Items accepted and not yet taken by a worker.",
        lambda stats: stats.tally.queued,
    ),
    (
        "batcher_queue_capacity_items",
        "Capacity of the ledger in items.",
        lambda stats: stats.capacity_items,
    ),
    (
        "batcher_max_items",
        "Items in a batch at most; an adaptive batcher changes it.",
        lambda stats: stats.max_items,
    ),
    (
        "batcher_workers",
        "Batches in flight at most; an adaptive batcher changes it.",
        lambda stats: stats.workers,
    ),
    ("batcher_flush_in_flight", "Batches being written.", lambda stats: stats.in_flight_batches),
    (
        "batcher_backing_off_items",
        "Items in batches that are backing off before their next try.",
        lambda stats: stats.tally.backing_off,
    ),
    (
        "batcher_oldest_age_seconds",
        "Age of the oldest item that no worker has taken.",
        lambda stats: stats.oldest_age or 0.0,
    ),
    (
        "batcher_waiting_producers",
        "Producers waiting for capacity.",
        lambda stats: stats.waiting_producers,
    ),
    (
        "batcher_held_keys",
        "Keys held since an item of theirs failed for good.",
        lambda stats: stats.held_keys,
    ),
    ("batcher_held_items", "Items waiting behind held keys.", lambda stats: stats.held_items),
    (
        "batcher_tenants",
        "Tenants with items inside, or with a held key.",
        lambda stats: stats.tenants,
    ),
    (
        "batcher_throttled_seconds",
        "Remaining throttle time, in seconds.",
        lambda stats: stats.throttled_seconds,
    ),
)
_COUNTERS: tuple[tuple[str, str, Callable[[Any], float]], ...] = (
    (
        "batcher_enqueued",
        "Items accepted, including those that overflow has dropped.",
        lambda stats: stats.tally.accepted,
    ),
    (
        "batcher_flushed_ok",
        "Items delivered, duplicate, spooled or dead-lettered.",
        lambda stats: stats.tally.flushed_ok,
    ),
    (
        "batcher_flushed_fail",
        "Items rejected, or of unknown outcome.",
        lambda stats: stats.tally.flushed_fail,
    ),
    (
        "batcher_dropped_on_shutdown",
        "Items handed back unsent.",
        lambda stats: stats.tally.dropped_on_shutdown,
    ),
    ("batcher_refused", "Items refused at add, never accepted.", lambda stats: stats.tally.refused),
    (
        "batcher_add_blocked",
        "Adds that had to wait for capacity.",
        lambda stats: stats.waits,
    ),
)


class Reader:
    """A reader of one batcher, from any thread, while it lives. Its counts never decrease."""

    def __init__(self, stats: Callable[[], Any]) -> None:
        self._stats: Callable[[], Callable[[], Any] | None] = (
            WeakMethod(stats) if ismethod(stats) else lambda: stats
        )
        self._last: Any = None
        self.counts: Counter[str] = Counter()
        """The counters as last read, by family and by outcome."""

    @property
    def is_gone(self) -> bool:
        """Whether the batcher was garbage-collected."""
        return self._stats() is None

    def read(self) -> Any:
        """The batcher's `Stats`, or the last ones if it cannot be read; `None` without any."""
        stats = self._stats()
        if stats is not None:
            try:
                self._last = stats()
            except Exception:
                # in the middle of a step; the next scrape reads it
                logger.debug("a batcher could not be read", exc_info=True)
                return self._last
            now = {family: int(value(self._last)) for family, _, value in _COUNTERS}
            now |= {outcome.value: self._last.tally.of(outcome) for outcome in Outcome}
            for key, count in now.items():
                self.counts[key] = max(self.counts[key], count)
        return self._last


class States:
    """A collector that reads the open batchers at each scrape."""

    def __init__(self) -> None:
        self._readers: dict[str, list[Reader]] = {}
        self._ended: dict[str, Counter[str]] = {}
        self._tenants: dict[str, int] = {}
        self._lock = threading.Lock()

    def watch(self, name: str, stats: Callable[[], Any], *, tenants: int) -> None:
        """Read this batcher from now on, and show at most `tenants` of its tenants."""
        with self._lock:
            self._tenants[name] = tenants
            self._readers.setdefault(name, []).append(Reader(stats))
            self._ended.setdefault(name, Counter())

    def forget(self, name: str) -> None:
        """Stop reading the closed batchers of this name; their counts stay."""
        with self._lock:
            self._read(name)

    def _read(self, name: str) -> tuple[list[Any], Counter[str]]:
        """The states of the open batchers of this name, and the counts of all so far."""
        states: list[Any] = []
        ended = self._ended[name]
        counts = Counter[str]()
        readers = self._readers[name]
        for reader in tuple(readers):
            stats = reader.read()
            if reader.is_gone or (stats is not None and stats.state in _ENDED):
                readers.remove(reader)
                ended += reader.counts
                continue
            counts += reader.counts
            if stats is not None:
                states.append(stats)
        self._ended[name] = ended
        return states, counts + ended

    def describe(self) -> Iterable[Metric]:
        """No metrics: registering must not read a batcher."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """Every family, with a sample per name."""
        with self._lock:
            found = {name: self._read(name) for name in self._readers}
        states = {name: each for name, (each, _) in found.items()}
        counts = {name: each for name, (_, each) in found.items()}
        yield from _gauges(states)
        yield _destinations(states)
        if any(self._tenants.values()):
            yield _pending(states, self._tenants)
        yield from _counters(counts)
        yield _outcomes(counts)


def _gauges(found: Mapping[str, Sequence[Any]]) -> Iterator[Metric]:
    from prometheus_client.core import GaugeMetricFamily

    for family, text, value in _GAUGES:
        gauge = GaugeMetricFamily(family, text, labels=("name",))
        for name, states in found.items():
            if states:
                gauge.add_metric([name], sum(map(value, states)))
        yield gauge


def _counters(found: Mapping[str, Counter[str]]) -> Iterator[Metric]:
    from prometheus_client.core import CounterMetricFamily

    for family, text, _value in _COUNTERS:
        counter = CounterMetricFamily(family, text, labels=("name",))
        for name, counts in found.items():
            counter.add_metric([name], counts[family])
        yield counter


def _outcomes(found: Mapping[str, Counter[str]]) -> Metric:
    from prometheus_client.core import CounterMetricFamily

    items = CounterMetricFamily("batcher_items", "Items by outcome.", labels=("name", "outcome"))
    for name, counts in found.items():
        for outcome in Outcome:
            items.add_metric([name, outcome.value], counts[outcome.value])
    return items


def _pending(found: Mapping[str, Sequence[Any]], most: Mapping[str, int]) -> Metric:
    from prometheus_client.core import GaugeMetricFamily

    labels = ("name", "tenant")
    pending = GaugeMetricFamily("batcher_tenant_pending_items", _PENDING, labels=labels)
    for name, states in found.items():
        for tenant, inside in _inside_by_tenant(states, most[name]).items():
            pending.add_metric([name, tenant], inside)
    return pending


def _destinations(found: Mapping[str, Sequence[Any]]) -> Metric:
    """The number of batchers of each name by the state of their destination."""
    from prometheus_client.core import GaugeMetricFamily

    text = (
        "Whether the destination is available, throttled, behind an open circuit, "
        "unavailable or refusing: 1 for its current state."
    )
    gauge = GaugeMetricFamily("batcher_destination_state", text, labels=("name", "state"))
    for name, states in found.items():
        if states:
            counts = Counter(stats.destination.state for stats in states)
            for state in DestinationState:
                gauge.add_metric([name, state.value], counts[state.value])
    return gauge


def _inside_by_tenant(states: Sequence[Any], most: int) -> dict[str, int]:
    """Items inside by tenant; small tenants count as other, so that scrapes show the same ones."""
    found = Counter[str]()
    for stats in states:
        for tenant in stats.busiest_tenants:
            if (
                tenant.inside * 100 >= stats.capacity_items
                and (label := label_of(tenant.tenant)) != OTHER
            ):
                found[label] += tenant.inside
    shown = dict(found.most_common(most))
    if most and any(stats.tenants for stats in states):
        shown[OTHER] = max(0, sum(stats.tally.inside for stats in states) - sum(shown.values()))
    return shown
