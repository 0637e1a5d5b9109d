"""Generates the Grafana dashboards from the tables of metrics and alerts.

White box: the tables.

`PYTHONPATH=src python -m tests.telemetry.dashboards` writes them; `make format` runs it.

1. A panel lists metrics of one unit; its queries, its unit and its description are made from their
   rows: a counter shows its rate, a histogram its median and its 99th percentile.
2. Values of one name are combined as the tables say: the sum, or for a maximum the greatest.
3. A topic may have hundreds of partitions. Sums are shown per topic, maxima of the worst partitions.
"""

from __future__ import annotations

import json
import re
from itertools import count
from pathlib import Path
from string import ascii_uppercase
from typing import TYPE_CHECKING, NamedTuple

from grafana_foundation_sdk.builders import common, prometheus, statetimeline, timeseries
from grafana_foundation_sdk.builders.dashboard import (
    Dashboard,
    DashboardLink,
    DatasourceVariable,
    QueryVariable,
    Row,
)
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.common import LegendDisplayMode, LegendPlacement
from grafana_foundation_sdk.models.dashboard import (
    DashboardCursorSync,
    DashboardLinkType,
    DataSourceRef,
    VariableOption,
    VariableRefresh,
    VariableSort,
)
from tests.telemetry.alerts import Alert, alerts_of

from sluicegate.postgres.metrics.queue_definitions import QUEUES
from sluicegate.postgres.metrics.stream_definitions import STREAM
from sluicegate.telemetry.batcher_metrics import BATCHER
from sluicegate.telemetry.consumer_metrics import CONSUMER

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from sluicegate.telemetry.metric import Catalogue, Metric

FOLDER = Path(__file__).parents[2] / "src" / "sluicegate" / "telemetry" / "dashboards"
SOURCE = DataSourceRef(type_val="prometheus", uid="${datasource}")
QUANTILES = {"median": 0.5, "99 %": 0.99}
WORST = 10
"""The number of partitions of which a maximum is shown."""


class Layout(NamedTuple):
    """What a dashboard shows, and where: titles of rows, of their panels, and the metrics."""

    title: str
    catalogues: tuple[Catalogue, ...]
    """Tables of its metrics, its own first."""
    variables: Mapping[str, str]
    """A label that a variable selects by, and a metric that always has it."""
    rows: Mapping[str, Mapping[str, tuple[str, ...]]]

    @property
    def metrics(self) -> dict[str, Metric]:
        """The metrics of its tables, by name."""
        return {
            metric.name: metric
            for catalogue in self.catalogues
            for metric in (*catalogue.metrics, *catalogue.by_tenant)
        }

    @property
    def alerts(self) -> tuple[Alert, ...]:
        """The alerts of its tables."""
        return tuple(alert for catalogue in self.catalogues for alert in alerts_of(catalogue))


LAYOUTS = {
    "batchers": Layout(
        "Sluicegate: batchers",
        (BATCHER,),
        dict.fromkeys(("name", "instance"), "batcher_flush_duration_seconds_count"),
        {
            "Delivery": {
                "Items by outcome": ("batcher_items",),
                "Accepted, delivered, failed": (
                    "batcher_enqueued", "batcher_flushed_ok", "batcher_flushed_fail",
                ),
                "Lost, dropped or returned": (
                    "batcher_lost", "batcher_dropped", "batcher_dropped_on_shutdown",
                    "batcher_withdrawn",
                ),
                "State of the destination": ("batcher_destination_state",),
            },
            "Queue": {
                "Items inside": (
                    "batcher_queue_depth", "batcher_backing_off_items", "batcher_held_items",
                    "batcher_queue_capacity_items",
                ),
                "Oldest item and throttling": (
                    "batcher_oldest_age_seconds", "batcher_throttled_seconds",
                ),
                "Adds that waited or were refused": ("batcher_add_blocked", "batcher_refused"),
                "Producers that wait, held keys": (
                    "batcher_waiting_producers", "batcher_held_keys",
                ),
            },
            "Writes": {
                "Items per write": ("batcher_batch_size_items", "batcher_max_items"),
                "Duration of a write": ("batcher_flush_duration_seconds",),
                "From the first item to the sealing": (
                    "batcher_batch_wait_seconds", "batcher_max_delay_seconds",
                ),
                "Writes by reason for sealing": ("batcher_flush",),
                "Writes in flight": ("batcher_flush_in_flight", "batcher_workers"),
                "Retries and failed writes": ("batcher_retries", "batcher_flush_fail"),
                "Failed items by error": ("batcher_flush_failure",),
            },
            "Spool": {
                "Items in the spool": ("batcher_spool_items", "batcher_spool_parked_items"),
                "Bytes of the spool": ("batcher_spool_bytes",),
                "Share of its bounds": ("batcher_spool_fill_ratio",),
                "Oldest item of the spool": ("batcher_spool_oldest_age_seconds",),
                "Files that few items keep": ("batcher_spool_sparse_files",),
            },
            "Tenants": {
                "Tenants inside": ("batcher_tenants",),
                "Items inside by tenant": ("batcher_tenant_pending_items",),
                "Items by tenant and outcome": ("batcher_tenant_items",),
            },
        },
    ),
    "consumers": Layout(
        "Sluicegate: consumers and pipes",
        (CONSUMER, BATCHER),
        dict.fromkeys(("name", "instance"), "source_received_total"),
        {
            "Progress": {
                "Lag": ("source_lag",),
                "Age of the oldest unfinished record": ("source_oldest_age_seconds",),
                "Records": ("source_received", "source_acked"),
                "State": ("consumer_state", "consumer_stalled"),
                "Positions": ("source_position", "source_committed"),
                "Time without a move of the position": ("consumer_head_age_seconds",),
            },
            "Messages inside": {
                "By place": ("consumer_messages",),
                "Messages and their limit": (
                    "consumer_in_flight_messages", "consumer_max_in_flight_messages",
                ),
                "Bytes and their limit": (
                    "consumer_in_flight_bytes", "consumer_max_in_flight_bytes",
                ),
                "Duration of a handler's turn": ("consumer_handler_duration_seconds",),
                "Batches": (
                    "source_batches", "consumer_split_batches", "consumer_miscounted_batches",
                ),
            },
            "Failures": {
                "Failed tries": ("source_nak", "consumer_deaf"),
                "Messages that could not be handled": ("consumer_poison",),
                "Settled without being handled": ("source_term", "consumer_letters"),
                "Not handled here, or again": (
                    "source_dropped", "source_replayed", "consumer_unparked",
                ),
                "Parked keys": ("consumer_parked_keys",),
            },
            "Partitions": {
                "Partitions": ("consumer_partitions", "consumer_paused", "consumer_map_cut"),
                "Assigned, revoked, lost": ("consumer_claims",),
                "Commits": ("source_commits", "source_failed"),
                "Size of the map of settled records": ("consumer_map_bytes",),
            },
            "Batcher of a pipe": {
                "Rows by outcome": ("batcher_items",),
                "Rows inside": ("batcher_queue_depth", "batcher_backing_off_items"),
                "Duration of a write": ("batcher_flush_duration_seconds",),
                "State of the destination": ("batcher_destination_state",),
            },
        },
    ),
    "queues": Layout(
        "Sluicegate: queues",
        (QUEUES,),
        {"name": "queue_up", "instance": "queue_up", "queue": "queue_paused"},
        {
            "Work": {
                "Jobs": ("queue_jobs", "queue_delayed_jobs"),
                "Keys to handle": ("queue_ready_keys", "queue_unmerged_bells"),
                "Wait of the longest-waiting key": ("queue_oldest_ready_seconds",),
                "Consumers and leases": ("queue_members", "queue_leases"),
            },
            "What waits for an operator": {
                "Stopped keys": ("queue_blocked_keys", "queue_parked_keys"),
                "Dead letters": ("queue_dead_letters",),
                "Without consumer or lane": ("queue_unowned_slots", "queue_keys_without_lane"),
                "Paused queues": ("queue_paused",),
            },
            "Tables and the monitor": {
                "Size with indexes": ("queue_table_size_bytes",),
                "Dead rows": ("queue_table_dead_rows",),
                "Monitor is up": ("queue_up",),
                "Polls": ("queue_monitor_polls", "queue_monitor_failures"),
            },
        },
    ),
    "streams": Layout(
        "Sluicegate: streams",
        (STREAM,),
        {"name": "stream_up", "instance": "stream_up", "subscription": "stream_paused"},
        {
            "Subscriptions": {
                "Lag in messages": ("stream_lag_messages",),
                "Age of the oldest unhandled message": ("stream_lag_seconds",),
                "Slots": ("stream_waiting_slots", "stream_unowned_slots", "stream_paused_slots"),
                "Processes": ("stream_members",),
                "Missed messages": ("stream_missed_messages",),
                "Parked keys": ("stream_parked_keys",),
                "Paused subscriptions": ("stream_paused",),
            },
            "Log": {
                "Last position": ("stream_last_position",),
                "Positions that cannot be read yet": ("stream_horizon_distance",),
                "Age of the horizon and of the oldest appender": (
                    "stream_horizon_age_seconds", "stream_appender_age_seconds",
                ),
            },
            "Tables and the monitor": {
                "Size with indexes": ("stream_table_size_bytes",),
                "Rows": ("stream_table_live_rows", "stream_table_dead_rows"),
                "Monitor is up": ("stream_up",),
                "Polls": ("stream_monitor_polls", "stream_monitor_failures"),
            },
        },
    ),
}  # fmt: skip


def dashboard(name: str) -> str:
    """The JSON of a dashboard."""
    layout = LAYOUTS[name]
    board = (
        Dashboard(layout.title)
        .uid(f"sluicegate-{name}")
        .description(f"Generated from the table of metrics of {layout.title.lower()}.")
        .tags(["sluicegate"])
        .time("now-1h", "now")
        .refresh("30s")
        .timezone("browser")
        .tooltip(DashboardCursorSync.CROSSHAIR)
        .link(
            DashboardLink("Sluicegate")
            .type(DashboardLinkType.DASHBOARDS)
            .tags(["sluicegate"])
            .keep_time(True)
        )
        .with_variable(DatasourceVariable("datasource").label("Data source").type("prometheus"))
    )
    for label, metric in layout.variables.items():
        board.with_variable(_variable(label, metric))
    ids = count(1)
    board.with_panel(_alerts(layout).id(next(ids)))
    for title, panels in layout.rows.items():
        board.with_row(Row(title).id(next(ids)))
        for panel, names in panels.items():
            board.with_panel(_panel(layout, panel, names).id(next(ids)))
    return json.dumps(board.build(), cls=JSONEncoder, indent=1, sort_keys=True) + "\n"


def _variable(label: str, metric: str) -> QueryVariable:
    chosen = "" if label == "name" else '{name=~"$name"}'
    return (
        QueryVariable(label)
        .label(label.capitalize())
        .datasource(SOURCE)
        .query(f"label_values({metric}{chosen}, {label})")
        .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(VariableSort.ALPHABETICAL_ASC)
        .multi(True)
        .include_all(True)
        .all_value(".*")
        .current(VariableOption(selected=True, text=["All"], value=["$__all"]))
    )


def _alerts(layout: Layout) -> statetimeline.Panel:
    names = "|".join(alert.name for alert in layout.alerts)
    chosen = f'alertstate="firing", alertname=~"{names}", name=~"$name"'
    query = _query(
        f"max by (alertname, severity, name) (ALERTS{{{chosen}}})",
        "{{severity}}: {{alertname}} {{name}}",
    )
    return (
        statetimeline.Panel()
        .title("Firing alerts")
        .description("Of the rules of `sluicegate.telemetry.alert_rules()`.")
        .datasource(SOURCE)
        .no_value("none")
        .height(6)
        .span(24)
        .with_target(query.ref_id("A"))
    )


def _panel(layout: Layout, title: str, names: tuple[str, ...]) -> timeseries.Panel:
    metrics = [layout.metrics[name] for name in names]
    (unit,) = {_unit(metric) for metric in metrics}
    legend = (
        common.VizLegendOptions()
        .display_mode(LegendDisplayMode.TABLE)
        .placement(LegendPlacement.BOTTOM)
        .show_legend(True)
        .calcs(["lastNotNull", "max"])
    )
    panel = (
        timeseries.Panel()
        .title(title)
        .description(_description(layout, metrics))
        .datasource(SOURCE)
        .unit(unit)
        .axis_soft_min(0)
        .fill_opacity(8)
        .legend(legend)
        .height(8)
        .span(8)
    )
    targets = [
        target for metric in metrics for target in _queries(layout, metric, len(metrics) == 1)
    ]
    for reference, (expression, form) in zip(ascii_uppercase, targets, strict=False):
        panel.with_target(_query(expression, form).ref_id(reference))
    return panel


def _unit(metric: Metric) -> str:
    if metric.kind == "counter":
        return "cps"
    return {"s": "s", "By": "bytes"}.get(metric.unit, "short")


def _description(layout: Layout, metrics: list[Metric]) -> str:
    lines = [f"`{metric.name}`: {metric.text}" for metric in metrics]
    named = re.compile(rf"\b({'|'.join(each.name for each in metrics)})(_total|_bucket)?\b")
    lines += [
        f"Alert `{each.name}`: {re.sub(r'{{.*?}}', '…', each.summary)}."
        for each in layout.alerts
        if named.search(each.condition)
    ]
    return "\n\n".join(lines)


def _queries(layout: Layout, metric: Metric, is_alone: bool) -> Iterator[tuple[str, str]]:
    """The queries of a metric, each with the format of its legend."""
    chosen = ", ".join(
        f'{label}=~"${label}"'
        for label in layout.variables
        if label in {"name", "instance", *metric.labels}
    )
    is_ranked = metric.kind == "max" and "partition" in metric.labels
    labels = [each for each in metric.all_labels if is_ranked or each != "partition"]
    by = ", ".join(labels)
    short = "" if is_alone else f" {metric.name.partition('_')[2].replace('_', ' ')}"
    legend = " ".join(f"{{{{{label}}}}}" for label in labels) + short
    if metric.kind == "histogram":
        rate = f"rate({metric.name}_bucket{{{chosen}}}[$__rate_interval])"
        for title, quantile in QUANTILES.items():
            query = f"histogram_quantile({quantile}, sum by (le, {by}) ({rate}))"
            yield query, f"{legend} {title}"
    elif metric.kind == "counter":
        yield f"sum by ({by}) (rate({metric.name}_total{{{chosen}}}[$__rate_interval]))", legend
    elif is_ranked:
        yield f"topk({WORST}, max by ({by}) ({metric.name}{{{chosen}}}))", legend
    else:
        combined = "max" if metric.kind == "max" else "sum"
        yield f"{combined} by ({by}) ({metric.name}{{{chosen}}})", legend


def _query(expression: str, legend: str) -> prometheus.Dataquery:
    return prometheus.Dataquery().expr(expression).legend_format(legend).range()


if __name__ == "__main__":
    for board in LAYOUTS:
        (FOLDER / f"{board}.json").write_text(dashboard(board), encoding="utf-8")
