"""Metrics for Prometheus.

1. Events of a batch are counted when they happen; states are read from the batcher at each scrape.
2. The families belong to the registry: any number of observers share them, and batchers of one name
   add up.
3. A batcher that has closed keeps its counts and has no state any more.
4. A scrape comes from any thread, and sees a batcher in the middle of a step. It never fails for
   that, and no counter goes back: Prometheus would take that for a restart, and count everything a
   second time.
5. Watching keeps no batcher alive: one that is forgotten with items inside must be able to say so.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from importlib.util import find_spec
from inspect import ismethod
from typing import TYPE_CHECKING, Any, ClassVar
from weakref import WeakKeyDictionary, WeakMethod

from .._core.checks import bad, count
from .._core.condition import DestinationState
from .._core.errors import ErrorClass, MissingExtra
from .._core.observer import Observer
from .._core.outcome import Outcome
from .._core.text import text_of
from ._tenants import OTHER, Top
from ._trace import trace_id

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from prometheus_client import CollectorRegistry
    from prometheus_client.core import Metric

    from .._core.batch import Batch

logger = logging.getLogger("penstock.telemetry")

_ENDED = {"closed", "forked"}

_PENDING = (
    "Items inside of the tenants that fill a hundredth of the ledger or more, and of "
    "all others as other."
)

SIZES = (1, 5, 10, 50, 100, 500, 1000, 5000, 10000)
SECONDS = tuple(0.001 * 2**power for power in range(16))

RETRIED = (
    ErrorClass.TRANSIENT,
    ErrorClass.THROTTLE,
    ErrorClass.UNAVAILABLE,
    ErrorClass.REFUSED,
    ErrorClass.UNKNOWN,
    ErrorClass.UNLISTED,
)
"""Classes of errors after which a batch is sent again."""

_GAUGES: tuple[tuple[str, str, Callable[[Any], float]], ...] = (
    (
        "batcher_queue_depth",
        "Items accepted and not yet taken by a worker.",
        lambda stats: stats.tally.queued,
    ),
    (
        "batcher_queue_capacity_items",
        "Items that may be inside at once.",
        lambda stats: stats.capacity_items,
    ),
    (
        "batcher_max_items",
        "Items in a batch at most; what an adaptive batcher has found.",
        lambda stats: stats.max_items,
    ),
    (
        "batcher_workers",
        "Batches in flight at most; what an adaptive batcher has found.",
        lambda stats: stats.workers,
    ),
    ("batcher_flush_in_flight", "Batches being written.", lambda stats: stats.in_flight_batches),
    (
        "batcher_backing_off_items",
        "Items in batches that wait before their next try.",
        lambda stats: stats.tally.backing_off,
    ),
    (
        "batcher_oldest_age_seconds",
        "Age of the oldest item that no worker has taken.",
        lambda stats: stats.oldest_age or 0.0,
    ),
    (
        "batcher_waiting_producers",
        "Producers that wait for room.",
        lambda stats: stats.waiting_producers,
    ),
    (
        "batcher_held_keys",
        "Keys of which nothing goes since an item of them failed for good.",
        lambda stats: stats.held_keys,
    ),
    ("batcher_held_items", "Items that wait behind those.", lambda stats: stats.held_items),
    (
        "batcher_tenants",
        "Tenants of which something is inside, or a key is held.",
        lambda stats: stats.tenants,
    ),
    (
        "batcher_throttled_seconds",
        "Seconds for which the destination asks to be left alone.",
        lambda stats: stats.throttled_seconds,
    ),
)
_COUNTERS: tuple[tuple[str, str, Callable[[Any], float]], ...] = (
    (
        "batcher_enqueued",
        "Items accepted, those that overflow has dropped included.",
        lambda stats: stats.tally.accepted,
    ),
    ("batcher_flushed_ok", "Items that are safe somewhere.", lambda stats: stats.tally.flushed_ok),
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
        "Times that an add has had to wait for room.",
        lambda stats: stats.waits,
    ),
)


class PrometheusObserver(Observer):
    """Metrics of batchers, or with `Observed` of sinks; see the how-to page for their names.

    Args:
        registry: a registry of `prometheus_client`; default: its global one.
        name: the label `name`; default: the batcher's.
        exemplars: whether durations carry the id of the current trace.
        tenants: how many tenants get series of their own: those with the most items in
            `batcher_tenant_items_total`, and in `batcher_tenant_pending_items` those that fill a
            hundredth of the ledger, twenty at most; all others are `other`. Default 0: none, and no
            such metrics. 20 show who is busy.

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
        if name is not None and not name:
            raise bad("name", name, "must be a string that is not empty")
        _require()
        self._registry = registry
        self._name = name
        self._exemplars = exemplars
        self._tenants = count("tenants", tenants, least=0)
        self._found: Families | None = None

    @property
    def _families(self) -> Families:
        if self._found is None:
            self._found = Families.of(self._registry)
        return self._found

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_found": None}

    def on_open(self, name: str, stats: Callable[[], Any]) -> None:
        """Read this batcher at each scrape."""
        self._families.begin(self._name or name)
        self._families.states.watch(self._name or name, stats, tenants=self._tenants)

    def on_state(self, name: str, state: str) -> None:
        """A closed batcher keeps its counts only."""
        if state == "closed":
            self._families.states.forget(self._name or name)

    def on_flushed(
        self, batch: Batch[Any], seconds: float, errors: Mapping[int, BaseException]
    ) -> None:
        """Count one write."""
        families, name = self._families, self._name or batch.name
        found = trace_id() if self._exemplars else None
        exemplar = {"trace_id": found} if found else None
        families.sizes.labels(name).observe(len(batch))
        families.seconds.labels(name, "error" if errors else "ok").observe(seconds, exemplar)
        families.flushes.labels(name, batch.reason.value).inc()
        if errors:
            families.failed_flushes.labels(name).inc()
            for kind, count in Counter(type(error).__name__ for error in errors.values()).items():
                families.errors.labels(name, kind).inc(count)

    def on_outcome(self, batch: Batch[Any], outcome: Outcome, indices: Sequence[int]) -> None:
        """Count a tenant's items, where that is asked for."""
        if self._tenants and batch.tenant is not None:
            self._families.count_tenant(
                self._name or batch.name, batch.tenant, outcome, len(indices), self._tenants
            )

    def on_retry(self, batch: Batch[Any], error_class: str, items: int, delay: float) -> None:
        """Count one retry."""
        self._families.retries.labels(self._name or batch.name, error_class).inc()

    def on_dropped(self, name: str, items: Sequence[Any], reason: str) -> None:
        """Count what is dropped."""
        self._families.dropped.labels(self._name or name, reason).inc(len(items))

    def __repr__(self) -> str:
        return (
            "PrometheusObserver()"
            if self._name is None
            else f"PrometheusObserver(name={self._name!r})"
        )


class Families:
    """The families of one registry."""

    _known: ClassVar[WeakKeyDictionary[CollectorRegistry, Families]] = WeakKeyDictionary()
    _lock = threading.Lock()

    def __init__(self, registry: CollectorRegistry) -> None:
        from prometheus_client import Counter, Histogram

        name = ("name",)
        self.sizes = Histogram(
            "batcher_batch_size_items",
            "Items in each written batch.",
            name,
            buckets=SIZES,
            registry=registry,
        )
        self.seconds = Histogram(
            "batcher_flush_duration_seconds",
            "Seconds of each write, waits included.",
            (*name, "result"),
            buckets=SECONDS,
            registry=registry,
        )
        self.flushes = Counter(
            "batcher_flush",
            "Writes, by what sealed the batch.",
            (*name, "reason"),
            registry=registry,
        )
        self.failed_flushes = Counter(
            "batcher_flush_fail", "Writes in which an item failed.", name, registry=registry
        )
        self.errors = Counter(
            "batcher_flush_failure",
            "Items that failed, by error.",
            (*name, "error_type"),
            registry=registry,
        )
        self.dropped = Counter(
            "batcher_dropped", "Items dropped, by reason.", (*name, "reason"), registry=registry
        )
        self.retries = Counter(
            "batcher_retries",
            "Times that a batch was sent again, by the class of the errors.",
            (*name, "class"),
            registry=registry,
        )
        self.states = States()
        registry.register(self.states)
        self._registry = registry
        self._tops: dict[str, Top] = {}
        self._tenant_items: Any = None

    def count_tenant(
        self, name: str, tenant: object, outcome: Outcome, items: int, most: int
    ) -> None:
        """Count items of a tenant by their outcome; at most so many tenants of a name are shown."""
        from prometheus_client import Counter

        if self._tenant_items is None:
            labels = ("name", "tenant", "outcome")
            text = "Items by tenant and how they ended; those of tenants with few items as other."
            self._tenant_items = Counter(
                "batcher_tenant_items", text, labels, registry=self._registry
            )
        top = self._tops.setdefault(name, Top(most))
        shown = _label(tenant)
        hidden = top.seen(shown, items)
        if hidden is not None:
            for each in Outcome:
                self._tenant_items.labels(
                    name, hidden, each.value
                )  # what is not there cannot be removed
                self._tenant_items.remove(name, hidden, each.value)
        self._tenant_items.labels(name, top.label(shown), outcome.value).inc(items)

    def begin(self, name: str) -> None:
        """Let the counts of losses begin with 0: of a series that begins with 5, Prometheus does
        not see an increase.
        """
        self.failed_flushes.labels(name)
        self.dropped.labels(name, "overflow")
        for result in ("ok", "error"):
            self.seconds.labels(name, result)
        for kind in RETRIED:
            self.retries.labels(name, kind.value)

    @classmethod
    def of(cls, registry: CollectorRegistry | None) -> Families:
        """The families of a registry, made at the first use."""
        from prometheus_client import REGISTRY

        used = REGISTRY if registry is None else registry
        with cls._lock:
            if used not in cls._known:
                cls._known[used] = cls(used)
            return cls._known[used]


class Reader:
    """Reads one batcher, from any thread, for as long as it lives. What it returns never goes
    back.
    """

    def __init__(self, stats: Callable[[], Any]) -> None:
        self._stats: Callable[[], Callable[[], Any] | None] = (
            WeakMethod(stats) if ismethod(stats) else lambda: stats
        )
        self._last: Any = None
        self.counts: Counter[str] = Counter()
        """The counters, as last read: by family, and by outcome."""

    @property
    def is_gone(self) -> bool:
        """Whether the batcher is gone."""
        return self._stats() is None

    def read(self) -> Any:
        """The batcher's `Stats`, or its last ones where it cannot be read; `None` without any."""
        stats = self._stats()
        if stats is not None:
            try:
                self._last = stats()
            except Exception:
                logger.debug(
                    "a batcher could not be read", exc_info=True
                )  # caught in the middle of a step; the next scrape will see
                return self._last
            now = {family: int(value(self._last)) for family, _, value in _COUNTERS}
            now |= {outcome.value: self._last.tally.of(outcome) for outcome in Outcome}
            for key, count in now.items():
                self.counts[key] = max(self.counts[key], count)
        return self._last


class States:
    """Reads open batchers at each scrape; a collector."""

    def __init__(self) -> None:
        self._readers: dict[str, list[Reader]] = {}
        self._ended: dict[str, Counter[str]] = {}
        self._tenants: dict[str, int] = {}
        self._lock = threading.Lock()

    def watch(self, name: str, stats: Callable[[], Any], *, tenants: int) -> None:
        """A batcher has opened, of which so many tenants are to be shown."""
        with self._lock:
            self._tenants[name] = tenants
            self._readers.setdefault(name, []).append(Reader(stats))
            self._ended.setdefault(name, Counter())

    def forget(self, name: str) -> None:
        """Batchers of this name that have closed keep their counts."""
        with self._lock:
            self._read(name)

    def _read(self, name: str) -> tuple[list[Any], Counter[str]]:
        """The states of the batchers of this name that are there, and the counts of all there ever
        were.
        """
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
        """Nothing: registering must not read a batcher."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """Every family, a sample per name."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        with self._lock:
            found = {name: self._read(name) for name in self._readers}
        for family, text, value in _GAUGES:
            gauge = GaugeMetricFamily(family, text, labels=("name",))
            for name, (states, _) in found.items():
                if states:
                    gauge.add_metric([name], sum(map(value, states)))
            yield gauge
        yield _destinations({name: states for name, (states, _) in found.items()})
        if any(self._tenants.values()):
            pending = GaugeMetricFamily(
                "batcher_tenant_pending_items", _PENDING, labels=("name", "tenant")
            )
            for name, (states, _) in found.items():
                for tenant, inside in _pending(states, self._tenants[name]).items():
                    pending.add_metric([name, tenant], inside)
            yield pending
        for family, text, _read in _COUNTERS:
            counter = CounterMetricFamily(family, text, labels=("name",))
            for name, (_, counts) in found.items():
                counter.add_metric([name], counts[family])
            yield counter
        items = CounterMetricFamily(
            "batcher_items", "Items by how they ended.", labels=("name", "outcome")
        )
        for name, (_, counts) in found.items():
            for outcome in Outcome:
                items.add_metric([name, outcome.value], counts[outcome.value])
        yield items


def _destinations(found: Mapping[str, Sequence[Any]]) -> Metric:
    """For each name how many of its batchers have their destination in which state."""
    from prometheus_client.core import GaugeMetricFamily

    text = (
        "Whether the destination is available, throttled, kept off by a breaker, "
        "unavailable or refusing: 1 for the state that it is in."
    )
    gauge = GaugeMetricFamily("batcher_destination_state", text, labels=("name", "state"))
    for name, states in found.items():
        if states:
            counts = Counter(stats.destination.state for stats in states)
            for state in DestinationState:
                gauge.add_metric([name, state.value], counts[state.value])
    return gauge


def _pending(states: Sequence[Any], most: int) -> dict[str, int]:
    """Items inside by tenant. Only those are shown that matter, so that one scrape does not show
    others than the next.
    """
    found = Counter[str]()
    for stats in states:
        for tenant in stats.busiest_tenants:
            if (
                tenant.inside * 100 >= stats.capacity_items
                and (label := _label(tenant.tenant)) != OTHER
            ):
                found[label] += tenant.inside
    shown = dict(found.most_common(most))
    if most and any(stats.tenants for stats in states):
        shown[OTHER] = max(0, sum(stats.tally.inside for stats in states) - sum(shown.values()))
    return shown


def _label(tenant: object) -> str:
    """The tenant as the value of a label: its `str`, or a remark where that raises."""
    return tenant if type(tenant) is str else text_of(tenant)


def _require() -> None:
    if find_spec("prometheus_client") is None:
        raise MissingExtra(
            'PrometheusObserver needs prometheus_client: pip install "penstock[prometheus]"'
        )
