"""The base of the observers for Prometheus and OpenTelemetry: it converts events into metrics.

1. Events of a batch are counted when they happen; states and totals are read from the batcher.
2. The metrics belong to the registry or the meter provider: all its observers share them, and
   batchers with the same name add up.
3. A closed batcher keeps its counts, but has no state.
4. An observer keeps no batcher alive: a batcher that is garbage-collected with items inside must be
   able to warn.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from typing import TYPE_CHECKING, Any, Protocol

from .._core.checks import bad, count, flag
from .._core.observer import Observer
from ._trace import trace_id
from .definitions import DROPPED, ERRORS, FAILED_FLUSHES, FLUSHES, RETRIES, SECONDS, SIZES, WAITS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from .._core.batch import Batch
    from .._core.outcome import Outcome
    from .measures import Family


class Instruments(Protocol):
    """The metrics of an exporter. The first label is the name."""

    def begin(self, name: str) -> None:
        """Start the loss counters at 0."""

    def count(self, family: Family, labels: tuple[str, ...], number: int) -> None:
        """Add to a counter."""

    def observe(
        self, family: Family, labels: tuple[str, ...], value: float, trace: str | None = None
    ) -> None:
        """Add a value to a histogram."""

    def count_tenant(
        self, name: str, tenant: object, outcome: Outcome, items: int, most: int
    ) -> None:
        """Count items of a tenant by outcome."""

    def watch(self, name: str, stats: Callable[[], Any], *, tenants: int) -> None:
        """Start showing the states of this batcher."""

    def forget(self, name: str) -> None:
        """Stop showing the states of the closed batchers of this name."""

    def refresh(self) -> None:
        """Update the states for exporters that do not read them at a scrape."""


class MetricsObserver(Observer):
    """Observer that converts events of batchers into metrics."""

    def __init__(self, name: str | None, *, exemplars: bool, tenants: int) -> None:
        if name is not None and not name:
            raise bad("name", name, "must be a string that is not empty")
        self._name = name
        self._exemplars = flag("exemplars", exemplars)
        self._tenants = count("tenants", tenants, least=0)
        self._found: Instruments | None = None

    @abstractmethod
    def _find(self) -> Instruments:
        """Return the metrics of the registry or provider."""

    @property
    def _instruments(self) -> Instruments:
        if self._found is None:
            self._found = self._find()
        return self._found

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_found": None}

    def on_open(self, name: str, stats: Callable[[], Any]) -> None:
        """Show the states of this batcher."""
        self._instruments.begin(self._name or name)
        self._instruments.watch(self._name or name, stats, tenants=self._tenants)

    def on_state(self, name: str, state: str) -> None:
        """Stop reading a closed batcher; its counts stay."""
        if state == "closed":
            self._instruments.forget(self._name or name)
        else:
            self._instruments.refresh()

    def on_flushed(
        self, batch: Batch[Any], seconds: float, errors: Mapping[int, BaseException]
    ) -> None:
        """Count one write."""
        told, name = self._instruments, self._name or batch.name
        trace = trace_id() if self._exemplars else None
        told.observe(SIZES, (name,), len(batch))
        told.observe(SECONDS, (name, "error" if errors else "ok"), seconds, trace)
        told.count(FLUSHES, (name, batch.reason.value), 1)
        if batch.sealed_at is not None and batch.oldest_at is not None:
            told.observe(WAITS, (name,), batch.sealed_at - batch.oldest_at)
        if errors:
            told.count(FAILED_FLUSHES, (name,), 1)
            for kind, number in Counter(type(error).__name__ for error in errors.values()).items():
                told.count(ERRORS, (name, kind), number)

    def on_outcome(self, batch: Batch[Any], outcome: Outcome, indices: Sequence[int]) -> None:
        """Count a tenant's items, unless `tenants=0`."""
        if self._tenants and batch.tenant is not None:
            self._instruments.count_tenant(
                self._name or batch.name, batch.tenant, outcome, len(indices), self._tenants
            )

    def on_retry(self, batch: Batch[Any], error_class: str, items: int, delay: float) -> None:
        """Count one retry."""
        self._instruments.count(RETRIES, (self._name or batch.name, error_class), 1)

    def on_destination(self, name: str, state: str, reason: str) -> None:
        """Show the new state."""
        self._instruments.refresh()

    def on_dropped(self, name: str, items: Sequence[Any], reason: str) -> None:
        """Count dropped items."""
        self._instruments.count(DROPPED, (self._name or name, reason), len(items))

    def on_adapted(self, name: str, workers: int, max_items: int) -> None:
        """Show the new limits."""
        self._instruments.refresh()

    def __repr__(self) -> str:
        given = "" if self._name is None else f"name={self._name!r}"
        return f"{type(self).__name__}({given})"
