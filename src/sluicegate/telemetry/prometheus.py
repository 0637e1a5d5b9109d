"""The observer for Prometheus.

A scrape runs in any thread, and may read a batcher in the middle of a step. It never fails because
of that, and no counter decreases: Prometheus would treat a decrease as a counter reset, and count
twice.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .._core.extras import need
from .event_observer import Instruments, MetricsObserver
from .families import Families

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry


class PrometheusObserver(MetricsObserver):
    """Metrics of batchers or, with `Observed`, of sinks; the how-to page lists their names.

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
        super().__init__(name, exemplars=exemplars, tenants=tenants)
        require_prometheus("PrometheusObserver")
        self._registry = registry

    def _find(self) -> Instruments:
        return Families.of(self._registry)


def require_prometheus(user: str) -> None:
    """Raise `MissingExtra`, which names `user`, if the client is not installed."""
    need("prometheus_client", "prometheus", user)
