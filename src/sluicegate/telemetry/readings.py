"""The values that an exporter reads from open batchers, consumers or monitors, and the tenants
among them. Thread-safe.

Objects with one name in one registry add up, which hides one behind the other: the first time that
happens is logged as a warning.

The number of tenants with their own time series is bounded:

1. Counting uses the *space saving* algorithm: a fixed number of tenants is counted at a time, and a
   new tenant takes over the place and the count of the tenant with the fewest items. Every tenant
   with more than its share of all items is counted. (Metwally, Agrawal, El Abbadi: Efficient
   Computation of Frequent and Top-k Elements in Data Streams, 2005.)
2. A tenant is shown when its count exceeds the lowest shown count; the tenant with that count is
   then hidden.
3. Items of a hidden tenant count as `other`, and stay there: no counter decreases. When a hidden
   tenant is shown again, its series restarts at 0, which Prometheus treats as a counter reset.
4. If series cannot be removed (`Kept`), that of a hidden tenant stays unchanged. To limit their
   number as well, a process shows at most ten times as many tenants during its life.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from inspect import ismethod
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakMethod

from .._core.logs import log_safely
from .._core.text import text_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from .metric import Catalogue, Labels, Metric

    Series = tuple[str, Labels]
    """A metric's name, and the values of its labels after `name`."""

logger = logging.getLogger("sluicegate.telemetry")

_ENDED = {"closed", "forked"}
COUNTED_PER_SHOWN = 10
OTHER = "other"


class StateReadings:
    """The batchers or consumers that an exporter reads. Thread-safe."""

    def __init__(self, catalogue: Catalogue) -> None:
        self._totals = catalogue.totals
        self._kind = catalogue.name
        self._shared: set[str] = set()
        """The names of which several were open at a time."""
        self._readers: dict[str, list[Reader]] = {}
        self._ended: dict[str, Counter[Series]] = {}
        self._tenants: dict[str, int] = {}
        self._lock = threading.Lock()

    def watch(self, name: str, stats: Callable[[], Any], *, tenants: int) -> None:
        """Start reading this batcher, and show at most `tenants` of its tenants."""
        with self._lock:
            self._tenants[name] = tenants
            self._ended.setdefault(name, Counter())
            readers = self._readers.setdefault(name, [])
            self._read(name)
            is_new = name not in self._shared and any(not each.is_of(stats) for each in readers)
            readers.append(Reader(stats, self._totals))
            if is_new:
                self._shared.add(name)
        if is_new:
            message = (
                "%s %r is open twice: the metrics of both add up; give each a name= of its own"
            )
            log_safely(logger, logging.WARNING, message, self._kind, name)

    def forget(self, name: str) -> None:
        """Stop reading the closed batchers of this name; their counts stay."""
        with self._lock:
            self._read(name)

    def read(self) -> list[StateReading]:
        """Return the readings of all batchers, by name."""
        with self._lock:
            return [self._read(name) for name in self._readers]

    @property
    def has_open(self) -> bool:
        """Whether a batcher was open when it was last read."""
        return any(self._readers.values())

    @property
    def shows_tenants(self) -> bool:
        """Whether an observer has `tenants`."""
        return any(self._tenants.values())

    def _read(self, name: str) -> StateReading:
        states: list[Any] = []
        ended = self._ended[name]
        counts = Counter[Any]()
        readers = self._readers[name]
        for reader in tuple(readers):
            stats = reader.read()
            if reader.is_gone or (stats is not None and stats.state in _ENDED):
                readers.remove(reader)
                ended.update(reader.counts)
                continue
            counts.update(reader.counts)
            if stats is not None:
                states.append(stats)
        counts.update(ended)
        return StateReading(name, states, counts, self._tenants[name])


class StateReading(NamedTuple):
    """The batchers of one name at one moment."""

    name: str
    states: Sequence[Any]
    """`Stats` of each open batcher."""
    counts: Mapping[Series, int]
    """The totals, including those of closed batchers."""
    most_tenants: int

    def of(self, metric: Metric) -> dict[Labels, float]:
        """Return the values of a state by their labels; empty without an open batcher."""
        found: dict[Labels, float] = {}
        for stats in self.states:
            for labels, value in metric.read(stats).items():
                before = found.get(labels, 0)
                found[labels] = max(before, value) if metric.kind == "max" else before + value
        return found

    def total(self, metric: Metric) -> dict[Labels, int]:
        """Return the values of a total by their labels; empty before the first reading."""
        return {
            labels: count for (name, labels), count in self.counts.items() if name == metric.name
        }

    def inside_by_tenant(self) -> dict[str, int]:
        """Return the pending items by tenant; small tenants count as other, so that scrapes are
        consistent.
        """
        if not self.most_tenants:
            return {}
        found = Counter[str]()
        for stats in self.states:
            for tenant in stats.busiest_tenants:
                if (
                    tenant.inside * 100 >= stats.capacity_items
                    and (label := label_of(tenant.tenant)) != OTHER
                ):
                    found[label] += tenant.inside
        shown = dict(found.most_common(self.most_tenants))
        if any(stats.tenants for stats in self.states):
            inside = sum(stats.tally.inside for stats in self.states)
            shown[OTHER] = max(0, inside - sum(shown.values()))
        return shown


class Reader:
    """A thread-safe reader of one batcher or consumer, which it does not keep alive.

    Its counts never decrease.
    """

    def __init__(self, stats: Callable[[], Any], totals: Sequence[Metric]) -> None:
        self._totals = totals
        self._stats: Callable[[], Callable[[], Any] | None] = (
            WeakMethod(stats) if ismethod(stats) else lambda: stats
        )
        self._last: Any = None
        self.counts: Counter[Series] = Counter(
            {(total.name, labels): 0 for total in totals for labels in total.first_series}
        )
        """The totals as last read."""

    def is_of(self, stats: Callable[[], Any]) -> bool:
        """Whether it reads the object with this method."""
        return self._stats() == stats

    @property
    def is_gone(self) -> bool:
        """Whether the batcher was garbage-collected."""
        return self._stats() is None

    def read(self) -> Any:
        """Return the batcher's `Stats`, or the last ones if it cannot be read; `None`
        without any.
        """
        stats = self._stats()
        if stats is not None:
            try:
                self._last = stats()
            except Exception:
                # in the middle of a step; the next scrape reads it
                logger.debug("a batcher or consumer could not be read", exc_info=True)
                return self._last
            for total in self._totals:
                for labels, value in total.read(self._last).items():
                    series = (total.name, labels)
                    self.counts[series] = max(self.counts[series], int(value))
        return self._last


class Top:
    """The tenants with their own time series, at most `most`."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._counted: dict[str, int] = {}
        self._shown: set[str] = set()

    def seen(self, tenant: str, items: int) -> str | None:
        """Count `items` of a tenant; return the tenant that is hidden as a result, if any."""
        if tenant == OTHER:
            return None
        counted = self._counted
        if tenant not in counted and len(counted) >= self._most * COUNTED_PER_SHOWN:
            least = min(counted, key=counted.__getitem__)
            counted[tenant] = counted.pop(least)
            if least in self._shown:  # then all counted tenants have this count
                self._shown.remove(least)
                self._shown.add(tenant)
                counted[tenant] += items
                return least
        counted[tenant] = counted.get(tenant, 0) + items
        if tenant in self._shown:
            return None
        if len(self._shown) < self._most:
            self._shown.add(tenant)
            return None
        last = min(self._shown, key=counted.__getitem__)
        if counted[tenant] <= counted[last]:
            return None
        self._shown.remove(last)
        self._shown.add(tenant)
        return last

    def label(self, tenant: str) -> str:
        """Return the tenant's own name if it is shown; otherwise `other`."""
        return tenant if tenant in self._shown else OTHER


class Kept:
    """Tenants whose series are kept forever, at most ten times `most`."""

    def __init__(self, most: int) -> None:
        self._most = most * COUNTED_PER_SHOWN
        self._kept: set[str] = set()

    def label(self, tenant: str) -> str:
        """Return the tenant's own name if it has a series or there is room for one; otherwise
        `other`.
        """
        if tenant not in self._kept and len(self._kept) < self._most:
            self._kept.add(tenant)
        return tenant if tenant in self._kept else OTHER


def label_of(tenant: object) -> str:
    """Return the label value of a tenant: its `str`, or a placeholder if that raises."""
    return tenant if type(tenant) is str else text_of(tenant)
