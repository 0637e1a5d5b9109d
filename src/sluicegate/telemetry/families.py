"""The Prometheus metrics of one registry, shared by its observers."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, ClassVar
from weakref import WeakKeyDictionary

from .._core.outcome import Outcome
from ._tenants import OTHER, Kept, Top, label_of
from .collector import StateCollector
from .definitions import BATCHER, TENANT_ITEMS
from .mirror import Mirror
from .readings import StateReadings

if TYPE_CHECKING:
    from collections.abc import Callable

    from prometheus_client import CollectorRegistry

    from .measures import Catalogue, Family


class Families:
    """The metric families of one registry, for batchers or for consumers."""

    _known: ClassVar[WeakKeyDictionary[CollectorRegistry, dict[str, Families]]] = (
        WeakKeyDictionary()
    )
    _lock = threading.Lock()

    def __init__(self, registry: CollectorRegistry, catalogue: Catalogue) -> None:
        from prometheus_client import Counter, Histogram

        self._registry = registry
        self._at_zero = catalogue.at_zero
        self._families: dict[str, Any] = {
            each.name: Histogram(
                each.name, each.text, each.all_labels, buckets=each.buckets, registry=registry
            )
            for each in catalogue.histograms
        }
        for each in catalogue.counters:
            self._families[each.name] = Counter(
                each.name, each.text, each.all_labels, registry=registry
            )
        self._children: dict[tuple[str, tuple[str, ...]], Any] = {}
        self._tops: dict[str, Top] = {}
        self._kept: dict[str, Kept] = {}
        self._is_multiprocess = is_multiprocess()
        self.states: StateCollector | Mirror
        """The states and totals: read at a scrape, or written by a timer in multiprocess mode."""
        if self._is_multiprocess:
            self.states = Mirror(registry, catalogue)
        else:
            self.states = StateCollector(StateReadings(catalogue), catalogue)
            registry.register(self.states)

    def _child(self, family: Family, labels: tuple[str, ...]) -> Any:
        """Return the series with these labels; cached, since each look-up takes a lock."""
        key = (family.name, labels)
        found = self._children.get(key)
        if found is None:
            found = self._children[key] = self._families[family.name].labels(*labels)
        return found

    def begin(self, name: str) -> None:
        """Start the loss counters at 0."""
        for family, labels in self._at_zero:
            self._child(family, (name, *labels))

    def count(self, family: Family, labels: tuple[str, ...], number: int) -> None:
        """Add to a counter."""
        self._child(family, labels).inc(number)

    def observe(
        self, family: Family, labels: tuple[str, ...], value: float, trace: str | None = None
    ) -> None:
        """Add a value to a histogram, with the id of its trace as an exemplar."""
        self._child(family, labels).observe(value, {"trace_id": trace} if trace else None)

    def watch(self, name: str, stats: Callable[[], Any], *, tenants: int) -> None:
        """Start showing the states of this batcher."""
        self.states.watch(name, stats, tenants=tenants)

    def forget(self, name: str) -> None:
        """Stop showing the states of the closed batchers of this name."""
        self.states.forget(name)

    def refresh(self) -> None:
        """Update the states if they are not read at a scrape."""
        self.states.refresh()

    def count_tenant(
        self, name: str, tenant: object, outcome: Outcome, items: int, most: int
    ) -> None:
        """Count items of a tenant by outcome; at most `most` tenants of a name are shown."""
        from prometheus_client import Counter

        family = self._families.get(TENANT_ITEMS.name)
        if family is None:
            family = self._families[TENANT_ITEMS.name] = Counter(
                TENANT_ITEMS.name,
                TENANT_ITEMS.text,
                TENANT_ITEMS.all_labels,
                registry=self._registry,
            )
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

    @classmethod
    def of(cls, registry: CollectorRegistry | None, catalogue: Catalogue = BATCHER) -> Families:
        """Return the families of a registry, created at the first use."""
        from prometheus_client import REGISTRY

        used = REGISTRY if registry is None else registry
        with cls._lock:
            known = cls._known.setdefault(used, {})
            if catalogue.name not in known:
                known[catalogue.name] = cls(used, catalogue)
            return known[catalogue.name]


def is_multiprocess() -> bool:
    """Return whether `prometheus_client` writes values to files; it decides this at its import."""
    from prometheus_client import values

    return values.ValueClass is not values.MutexValue
