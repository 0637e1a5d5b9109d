"""The progress of Spark's streaming queries as metrics for Prometheus."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.streaming.listener import StreamingQueryListener

from .._core.public import publish
from ..telemetry.prometheus import PrometheusInstruments, require_prometheus
from .metrics import DURATION, QUERY, Query

if TYPE_CHECKING:
    from uuid import UUID

    from prometheus_client import CollectorRegistry
    from pyspark.sql.streaming.listener import (
        QueryIdleEvent,
        QueryProgressEvent,
        QueryStartedEvent,
        QueryTerminatedEvent,
    )


class PrometheusQueryListener(StreamingQueryListener):
    """Metrics of the streaming queries of a session, for `spark.streams.addListener(...)`; the
    reference page lists their names.

    The label `name` is the name of the query (`queryName`), or its id. A query that is started
    again under its name continues its counts. Works in the driver, and with Spark Connect 4 in its
    client.

    Args:
        registry: a registry of `prometheus_client`; default: its global one.

    Raises `MissingExtra` without `prometheus_client`.
    """

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        require_prometheus("PrometheusQueryListener")
        self._instruments = PrometheusInstruments.of(registry, QUERY)
        self._names: dict[UUID, str] = {}
        self._queries: dict[str, Query] = {}

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802  # Spark's name
        """Show a query."""
        self._find(event.id, event.name).turn("active")
        self._instruments.refresh()

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        """Show the values of a micro-batch."""
        made = event.progress
        self._find(made.id, made.name).progress(made)
        self._instruments.observe(DURATION, (self._names[made.id],), made.batchDuration / 1000)
        self._instruments.refresh()

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802
        """Show that there are no new rows."""
        self._find(event.id).turn("idle", event.timestamp)
        self._instruments.refresh()

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        """Show that the query ended or failed."""
        self._find(event.id).turn("ended" if event.exception is None else "failed")
        self._instruments.refresh()

    def forget(self) -> None:
        """Stop showing the states of the queries; their counts stay."""
        for name, query in self._queries.items():
            query.turn("closed")
            self._instruments.forget(name)

    def _find(self, number: UUID, name: str | None = None) -> Query:
        """Return the values of a query; shows it if it is new."""
        name = self._names[number] = name or self._names.get(number, str(number))
        if name not in self._queries:
            self._queries[name] = Query()
            self._instruments.watch(name, self._queries[name].stats, tenants=0)
        return self._queries[name]


publish("sluicegate.spark", PrometheusQueryListener)
