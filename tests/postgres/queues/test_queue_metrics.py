"""Metrics of queues: names and values with both exporters, and without figures.

White box: the definitions of metrics, and figures made by hand.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("prometheus_client")
pytest.importorskip("opentelemetry.sdk")
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from prometheus_client import CollectorRegistry
from tests.postgres.streams.test_stream_metrics import Samples, samples

from sluicegate.postgres import OpenTelemetryQueueObserver, PrometheusQueueObserver
from sluicegate.postgres.metrics.queue_definitions import QUEUES
from sluicegate.postgres.queues.stats import QueueFigures, QueueStats
from sluicegate.postgres.records.monitor import MonitorStats

MAILS = QueueStats(
    is_paused=False,
    jobs=7,
    ready=2,
    delayed=1,
    leased=3,
    blocked=4,
    parked=5,
    dead=6,
    bells=8,
    members=9,
    oldest_seconds=12.5,
    next_due=None,
    unowned_slots=10,
    without_lane=11,
)
FIGURES = QueueFigures(
    {"mails": MAILS, "unread": None}, {"mails": False, "unread": True}, {"job": 800}, {"job": 65536}
)
STATS = MonitorStats("open", 11, 2, FIGURES)
SHOWN: Samples = {
    ("queue_paused", "shop", "mails"): 0,
    ("queue_paused", "shop", "unread"): 1,
    ("queue_jobs", "shop", "mails"): 7,
    ("queue_ready_keys", "shop", "mails"): 2,
    ("queue_unmerged_bells", "shop", "mails"): 8,
    ("queue_oldest_ready_seconds", "shop", "mails"): 12.5,
    ("queue_delayed_jobs", "shop", "mails"): 1,
    ("queue_leases", "shop", "mails"): 3,
    ("queue_blocked_keys", "shop", "mails"): 4,
    ("queue_parked_keys", "shop", "mails"): 5,
    ("queue_dead_letters", "shop", "mails"): 6,
    ("queue_members", "shop", "mails"): 9,
    ("queue_unowned_slots", "shop", "mails"): 10,
    ("queue_keys_without_lane", "shop", "mails"): 11,
    ("queue_table_size_bytes", "shop", "job"): 65536,
    ("queue_table_dead_rows", "shop", "job"): 800,
}
EVERY: Samples = {
    ("queue_up", "shop"): 1,
    **SHOWN,
    ("queue_monitor_polls_total", "shop"): 11,
    ("queue_monitor_failures_total", "shop"): 2,
}


def test_a_scrape_has_the_figures_of_the_last_look() -> None:
    """Q20: a queue without sticky routing has no slots with owners."""
    registry = CollectorRegistry()
    PrometheusQueueObserver(registry).on_open("shop", lambda: STATS)
    assert samples(registry) == EVERY
    assert {key[0] for key in SHOWN} == {each.name for each in QUEUES.states} - {"queue_up"}
    plain = replace(FIGURES, queues={"mails": replace(MAILS, unowned_slots=None)})
    registry = CollectorRegistry()
    PrometheusQueueObserver(registry).on_open("shop", lambda: replace(STATS, figures=plain))
    assert ("queue_unowned_slots", "shop", "mails") not in samples(registry)


def test_without_figures_there_are_counts_only_and_up_is_0() -> None:
    registry = CollectorRegistry()
    now = [replace(STATS, failed=3, figures=None)]
    observer = PrometheusQueueObserver(registry, name="orders")
    observer.on_open("shop", lambda: now[0])
    assert samples(registry) == {
        ("queue_up", "orders"): 0,
        ("queue_monitor_polls_total", "orders"): 11,
        ("queue_monitor_failures_total", "orders"): 3,
    }


def test_opentelemetry_has_the_same_values() -> None:
    reader = InMemoryMetricReader()
    observer = OpenTelemetryQueueObserver(MeterProvider([reader]))
    observer.on_open("shop", lambda: STATS)
    data: Any = reader.get_metrics_data()
    found = {
        (metric.name, *point.attributes.values()): point.value
        for resource in data.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
        for point in metric.data.data_points
    }
    names = {each.name: each.otel_name for each in QUEUES.metrics}
    assert found == {
        (names[name.removesuffix("_total")], *rest): value for (name, *rest), value in EVERY.items()
    }
