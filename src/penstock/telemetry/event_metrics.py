"""Counters and histograms of batches' events: one set per registry, shared by its observers."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple
from weakref import WeakKeyDictionary

from .._core.errors import ErrorClass
from .._core.outcome import Outcome
from ._tenants import Top, label_of
from .state_metrics import States

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry, Counter, Histogram

    from .._core.lineage import Reason

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
"""Error classes after which a batch is sent again."""


class WriteMetrics(NamedTuple):
    """The metrics of writes with the same labels."""

    sizes: Histogram
    seconds: Histogram
    flushes: Counter


class Families:
    """The metric families of one registry."""

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
        self._of_writes: dict[tuple[str, str, Reason], WriteMetrics] = {}
        self._tops: dict[str, Top] = {}
        self._tenant_items: Any = None

    def of_write(self, name: str, result: str, reason: Reason) -> WriteMetrics:
        """The metrics with these labels; looked up once, since each look-up takes a lock."""
        labels = (name, result, reason)
        found = self._of_writes.get(labels)
        if found is None:
            found = self._of_writes[labels] = WriteMetrics(
                self.sizes.labels(name),
                self.seconds.labels(name, result),
                self.flushes.labels(name, reason.value),
            )
        return found

    def count_tenant(
        self, name: str, tenant: object, outcome: Outcome, items: int, most: int
    ) -> None:
        """Count items of a tenant by outcome; at most `most` tenants of a name are shown."""
        from prometheus_client import Counter

        if self._tenant_items is None:
            labels = ("name", "tenant", "outcome")
            text = "Items by tenant and how they ended; those of tenants with few items as other."
            self._tenant_items = Counter(
                "batcher_tenant_items", text, labels, registry=self._registry
            )
        top = self._tops.setdefault(name, Top(most))
        shown = label_of(tenant)
        hidden = top.seen(shown, items)
        if hidden is not None:
            for each in Outcome:
                self._tenant_items.labels(name, hidden, each.value)  # only an existing one can go
                self._tenant_items.remove(name, hidden, each.value)
        self._tenant_items.labels(name, top.label(shown), outcome.value).inc(items)

    def begin(self, name: str) -> None:
        """Start the counts of losses at 0: Prometheus sees no increase in one that starts at 5."""
        self.failed_flushes.labels(name)
        self.dropped.labels(name, "overflow")
        for result in ("ok", "error"):
            self.seconds.labels(name, result)
        for kind in RETRIED:
            self.retries.labels(name, kind.value)

    @classmethod
    def of(cls, registry: CollectorRegistry | None) -> Families:
        """The families of a registry, created at the first use."""
        from prometheus_client import REGISTRY

        used = REGISTRY if registry is None else registry
        with cls._lock:
            if used not in cls._known:
                cls._known[used] = cls(used)
            return cls._known[used]
