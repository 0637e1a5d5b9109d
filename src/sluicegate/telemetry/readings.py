"""States and totals of open batchers or consumers. Thread-safe.

Objects with one name in one registry add up, which hides one behind the other: the first time that
happens is logged as a warning.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from inspect import ismethod
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakMethod

from .._core.logs import log_safely
from ._tenants import OTHER, label_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from .measures import Catalogue, Measure

    Series = tuple[str, tuple[str, ...]]
    """A family's name, and the values of its labels after `name`."""

logger = logging.getLogger("sluicegate.telemetry")

_ENDED = {"closed", "forked"}


class StateReading(NamedTuple):
    """The batchers of one name at one moment."""

    name: str
    states: Sequence[Any]
    """`Stats` of each open batcher."""
    counts: Mapping[Series, int]
    """The totals, including those of closed batchers."""
    most_tenants: int

    def of(self, measure: Measure) -> dict[tuple[str, ...], float]:
        """Return the values of a state by their labels; empty without an open batcher."""
        found: dict[tuple[str, ...], float] = {}
        for stats in self.states:
            for labels, value in measure.read(stats).items():
                before = found.get(labels, 0)
                found[labels] = max(before, value) if measure.is_greatest else before + value
        return found

    def total(self, measure: Measure) -> dict[tuple[str, ...], int]:
        """Return the values of a total by their labels; empty before the first reading."""
        name = measure.family.name
        return {labels: count for (family, labels), count in self.counts.items() if family == name}

    def inside_by_tenant(self) -> dict[str, int]:
        """Return the items inside by tenant; small tenants count as other, so that scrapes are
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

    def __init__(self, stats: Callable[[], Any], totals: Sequence[Measure]) -> None:
        self._totals = totals
        self._stats: Callable[[], Callable[[], Any] | None] = (
            WeakMethod(stats) if ismethod(stats) else lambda: stats
        )
        self._last: Any = None
        self.counts: Counter[Series] = Counter(
            {(total.family.name, labels): 0 for total in totals for labels in total.series}
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
                    series = (total.family.name, labels)
                    self.counts[series] = max(self.counts[series], int(value))
        return self._last


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
