"""Metrics of logs: names and values with both exporters, and without figures.

White box: the definitions of metrics, and figures made by hand.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, TypeAlias

import pytest

pytest.importorskip("prometheus_client")
pytest.importorskip("opentelemetry.sdk")
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from prometheus_client import CollectorRegistry

from sluicegate.postgres import OpenTelemetryStreamObserver, PrometheusStreamObserver
from sluicegate.postgres.metrics.stream_definitions import STREAM
from sluicegate.postgres.records.monitor import MonitorStats
from sluicegate.postgres.streams.stats import (
    Backlog,
    HorizonStats,
    LogFigures,
    SubscriptionStats,
    TableStats,
)

Samples: TypeAlias = dict[tuple[str, ...], float]

FIGURES = LogFigures(
    HorizonStats(90, 100, 12.5, age=3.0),
    {
        "s": SubscriptionStats(2, False, 1, 4, Backlog(7, 30.0, 5, 2)),
        "p": SubscriptionStats(0, True, 0, 0, None),
    },
    {"c": 3},
    {"subscription_slot": TableStats(256, 800, 65536)},
)
STATS = MonitorStats("open", 11, 2, FIGURES)
UP: Samples = {("stream_up", "log"): 1}
LOG: Samples = {
    ("stream_last_position", "log"): 100,
    ("stream_horizon_distance", "log"): 10,
    ("stream_horizon_age_seconds", "log"): 3.0,
    ("stream_appender_age_seconds", "log"): 12.5,
    ("stream_lag_messages", "log", "s"): 7,
    ("stream_lag_seconds", "log", "s"): 30.0,
    ("stream_waiting_slots", "log", "s"): 5,
    ("stream_unowned_slots", "log", "s"): 2,
    ("stream_members", "log", "s"): 2,
    ("stream_members", "log", "p"): 0,
    ("stream_paused", "log", "s"): 0,
    ("stream_paused", "log", "p"): 1,
    ("stream_paused_slots", "log", "s"): 1,
    ("stream_paused_slots", "log", "p"): 0,
    ("stream_missed_messages", "log", "s"): 4,
    ("stream_missed_messages", "log", "p"): 0,
    ("stream_parked_keys", "log", "c"): 3,
    ("stream_table_size_bytes", "log", "subscription_slot"): 65536,
    ("stream_table_live_rows", "log", "subscription_slot"): 256,
    ("stream_table_dead_rows", "log", "subscription_slot"): 800,
}
COUNTS: Samples = {
    ("stream_monitor_polls_total", "log"): 11,
    ("stream_monitor_failures_total", "log"): 2,
}
EVERY: Samples = {**UP, **LOG, **COUNTS}
NAMES = {each.name for each in STREAM.states}


def samples(registry: CollectorRegistry) -> Samples:
    return {
        (each.name, *each.labels.values()): each.value
        for family in registry.collect()
        for each in family.samples
    }


def test_a_scrape_has_the_figures_of_the_last_look() -> None:
    registry = CollectorRegistry()
    observer = PrometheusStreamObserver(registry)
    observer.on_open("log", lambda: STATS)
    assert samples(registry) == EVERY
    assert {key[0] for key in LOG} == NAMES - {"stream_up"}


def test_without_figures_there_are_counts_only_and_up_is_0() -> None:
    """Old values would look current."""
    registry = CollectorRegistry()
    now: list[MonitorStats[LogFigures]] = [STATS]
    observer = PrometheusStreamObserver(registry, name="orders")
    observer.on_open("log", lambda: now[0])
    samples(registry)
    now[0] = replace(STATS, failed=3, figures=None)
    assert samples(registry) == {
        ("stream_up", "orders"): 0,
        ("stream_monitor_polls_total", "orders"): 11,
        ("stream_monitor_failures_total", "orders"): 3,
    }
    now[0] = replace(now[0], state="closed")
    observer.on_close("log")
    assert set(samples(registry)) == {
        ("stream_monitor_polls_total", "orders"),
        ("stream_monitor_failures_total", "orders"),
    }


def test_two_monitors_of_a_log_show_it_once() -> None:
    registry = CollectorRegistry()
    for _ in range(2):
        PrometheusStreamObserver(registry).on_open("log", lambda: STATS)
    found = samples(registry)
    assert {key: found[key] for key in LOG} == LOG


def test_opentelemetry_has_the_same_values() -> None:
    reader = InMemoryMetricReader()
    observer = OpenTelemetryStreamObserver(MeterProvider([reader]))
    observer.on_open("log", lambda: STATS)
    data: Any = reader.get_metrics_data()
    found = {
        (metric.name, *point.attributes.values()): point.value
        for resource in data.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
        for point in metric.data.data_points
    }
    names = {each.name: each.otel_name for each in STREAM.metrics}
    assert found == {
        (names[name.removesuffix("_total")], *rest): value for (name, *rest), value in EVERY.items()
    }
