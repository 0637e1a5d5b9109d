"""The observer for Prometheus.

1. Events of a batch are counted when they happen (`event_metrics`); states are read from the
   batcher at each scrape (`state_metrics`).
2. The metric families belong to the registry: all observers of a registry share them, and batchers
   of one name add up.
3. A closed batcher keeps its counts and has no state.
4. A scrape runs in any thread, and may see a batcher in the middle of a step. It never fails for
   that, and no counter decreases: Prometheus would treat that as a restart, and count everything
   twice.
5. An observer keeps no batcher alive: one that is dropped with items inside must be able to warn.
"""

from __future__ import annotations

from collections import Counter
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from .._core.checks import bad, count
from .._core.errors import MissingExtra
from .._core.observer import Observer
from ._trace import trace_id
from .event_metrics import Families

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from prometheus_client import CollectorRegistry

    from .._core.batch import Batch
    from .._core.outcome import Outcome


class PrometheusObserver(Observer):
    """Metrics of batchers, or with `Observed` of sinks; the how-to page lists their names.

    Args:
        registry: a registry of `prometheus_client`; default: its global one.
        name: the label `name`; default: the batcher's.
        exemplars: whether durations carry the id of the current trace.
        tenants: the number of tenants with time series of their own: those with the most items in
            `batcher_tenant_items_total`, and in `batcher_tenant_pending_items` those that fill a
            hundredth of the ledger, twenty at most; all others are `other`. Default 0: none, and no
            such metrics. 20 show the busy tenants.

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
        """Stop reading a closed batcher; its counts stay."""
        if state == "closed":
            self._families.states.forget(self._name or name)

    def on_flushed(
        self, batch: Batch[Any], seconds: float, errors: Mapping[int, BaseException]
    ) -> None:
        """Count one write."""
        families, name = self._families, self._name or batch.name
        found = trace_id() if self._exemplars else None
        exemplar = {"trace_id": found} if found else None
        metrics = families.of_write(name, "error" if errors else "ok", batch.reason)
        metrics.sizes.observe(len(batch))
        metrics.seconds.observe(seconds, exemplar)
        metrics.flushes.inc()
        if errors:
            families.failed_flushes.labels(name).inc()
            for kind, count in Counter(type(error).__name__ for error in errors.values()).items():
                families.errors.labels(name, kind).inc(count)

    def on_outcome(self, batch: Batch[Any], outcome: Outcome, indices: Sequence[int]) -> None:
        """Count a tenant's items, unless `tenants=0`."""
        if self._tenants and batch.tenant is not None:
            self._families.count_tenant(
                self._name or batch.name, batch.tenant, outcome, len(indices), self._tenants
            )

    def on_retry(self, batch: Batch[Any], error_class: str, items: int, delay: float) -> None:
        """Count one retry."""
        self._families.retries.labels(self._name or batch.name, error_class).inc()

    def on_dropped(self, name: str, items: Sequence[Any], reason: str) -> None:
        """Count dropped items."""
        self._families.dropped.labels(self._name or name, reason).inc(len(items))

    def __repr__(self) -> str:
        return (
            "PrometheusObserver()"
            if self._name is None
            else f"PrometheusObserver(name={self._name!r})"
        )


def _require() -> None:
    if find_spec("prometheus_client") is None:
        raise MissingExtra(
            'PrometheusObserver needs prometheus_client: pip install "penstock[prometheus]"'
        )
