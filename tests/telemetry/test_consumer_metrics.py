"""Metrics of consumers: their names, their values, and the agreement of both exporters.

White box: the table of metrics.
"""

from __future__ import annotations

import asyncio
import gc
import json
import math
import os
import subprocess
import sys
import weakref
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("prometheus_client")
pytest.importorskip("opentelemetry.sdk")
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import HistogramDataPoint, InMemoryMetricReader
from prometheus_client import CollectorRegistry

from sluicegate import ConfigError, Consumer, Nak, Terminate, ToDeadLetter
from sluicegate.consumer import MemoryLog, MemorySource, Poison, Record, TopicPartition
from sluicegate.sinks import MemorySink
from sluicegate.telemetry import (
    OpenTelemetryConsumerObserver,
    PrometheusConsumerObserver,
)
from sluicegate.telemetry.consumer_metrics import CONSUMER

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from sluicegate import Message
    from sluicegate.consumer import ConsumerObserver
    from sluicegate.testing import FakeClock

P0 = TopicPartition("orders", 0)
HISTOGRAM = "consumer_handler_duration_seconds"

Series = tuple[str, frozenset[tuple[str, str]]]


def log_of(keys: str) -> MemoryLog:
    return MemoryLog(
        [Record("orders", 0, offset, key, b"12345") for offset, key in enumerate(keys)]
    )


async def handler(message: Message) -> object:
    """Blocks `b`, makes `r` back off, sends `d` to the dead letters, holds `h`, and handles the
    rest.
    """
    match message.key:
        case "b":
            return Terminate("bad")
        case "r":
            return Nak(delay=1e5)
        case "d":
            return ToDeadLetter("old")
        case "h":
            await asyncio.Event().wait()
        case _:
            pass
    return None


@asynccontextmanager
async def running(
    clock: FakeClock, keys: str, *observers: ConsumerObserver, **options: Any
) -> AsyncGenerator[Consumer]:
    """A consumer that has handled all it can; it is stopped at the end."""
    source = MemorySource(log_of(keys), clock=clock)
    options = {"poison": Poison("block", dead_letters=MemorySink()), "drain": 1.0, **options}
    consumer = Consumer(source, name="billing", clock=clock, observers=observers, **options)
    async with consumer:
        run = asyncio.create_task(consumer.run(handler))
        await clock.advance(20.0)
        try:
            yield consumer
        finally:
            consumer.stop()
            await run


def samples(registry: CollectorRegistry) -> dict[Series, float]:
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in registry.collect()
        for sample in family.samples
        if not sample.name.endswith("_created")
    }


async def test_names_and_labels(fake_clock: FakeClock) -> None:
    """consumer/O32: exact, and no key among the labels."""
    registry = CollectorRegistry()
    async with running(fake_clock, "abdr", PrometheusConsumerObserver(registry, durations=True)):
        found = {family.name: family for family in registry.collect()}
    assert {name: family.type for name, family in found.items()} == {
        metric.name: metric.kind.replace("max", "gauge") for metric in CONSUMER.metrics
    }
    for metric in CONSUMER.metrics:
        for sample in found[metric.name].samples:
            assert set(sample.labels) - {"le"} == set(metric.all_labels)


async def test_they_say_what_happened(fake_clock: FakeClock) -> None:
    """consumer/O32: received, acked, nak, term, failed, lag; read at the scrape."""
    registry = CollectorRegistry()
    observer = PrometheusConsumerObserver(registry, lag_every=5.0)

    def value(metric: str, **labels: str) -> float | None:
        return registry.get_sample_value(metric, {"name": "billing", **labels})

    partition = {"topic": "orders", "partition": "0"}
    async with running(fake_clock, "aabbrdhh", observer) as consumer:
        assert value("source_received_total") == 8
        assert value("source_acked_total") == 2
        assert value("source_nak_total") == 1
        assert value("source_term_total", fate="dead_lettered") == 1
        assert value("source_term_total", fate="terminated") == 0
        assert value("source_lag", **partition) == 6
        assert value("source_position", **partition) == 2
        assert value("source_committed", **partition) == 2
        assert value("consumer_head_age_seconds", **partition) == pytest.approx(19, abs=1.1)
        assert value("consumer_map_bytes", **partition)
        assert value("consumer_map_cut", **partition) == 0
        places = ("blocked", "backing_off", "running", "waiting", "ready")
        inside = [value("consumer_messages", place=place) for place in places]
        assert inside == [1, 1, 1, 2, 0]
        assert value("consumer_in_flight_messages") == 5
        assert value("consumer_in_flight_bytes") == 25
        assert value("consumer_max_in_flight_messages") == 1000
        assert value("consumer_letters_total") == 1
        assert value("consumer_claims_total", change="assigned") == 1
        assert value("consumer_claims_total", change="lost") == 0
        assert value("consumer_poison_total", action="block", error_type="PoisonError") == 1
        assert value("consumer_state", state="ready") == 1
        assert value("consumer_stalled") == 0
        consumer.pause(P0)
        assert value("consumer_paused", **partition) == 1
        assert registry.get_sample_value(f"{HISTOGRAM}_count", {"name": "billing"}) is None
    assert value("source_acked_total") == 2
    assert value("consumer_in_flight_messages") is None


async def test_a_stall_shows(fake_clock: FakeClock) -> None:
    registry = CollectorRegistry()
    observer = PrometheusConsumerObserver(registry)
    async with running(fake_clock, "b", observer, stall_after=10.0):
        assert registry.get_sample_value("consumer_stalled", {"name": "billing"}) == 1


async def test_durations_are_measured_where_they_are_wanted(fake_clock: FakeClock) -> None:
    registry = CollectorRegistry()
    async with running(fake_clock, "aaab", PrometheusConsumerObserver(registry, durations=True)):
        counts = {
            outcome: registry.get_sample_value(
                f"{HISTOGRAM}_count", {"name": "billing", "outcome": outcome}
            )
            for outcome in ("ack", "terminate")
        }
    assert counts == {"ack": 3, "terminate": 1}


async def test_both_exporters_have_the_same_values(fake_clock: FakeClock) -> None:
    """consumer/O32: from the same definitions."""
    registry, reader = CollectorRegistry(), InMemoryMetricReader()
    provider = MeterProvider(metric_readers=[reader])
    observers = (
        PrometheusConsumerObserver(registry, durations=True),
        OpenTelemetryConsumerObserver(provider, durations=True),
    )
    async with running(fake_clock, "abbrrdhha", *observers):
        expected, found = samples(registry), from_otel(reader)
        assert len(found) > 60
        assert found == {key: pytest.approx(value) for key, value in expected.items()}
    expected, found = samples(registry), from_otel(reader)
    assert found == {key: pytest.approx(value) for key, value in expected.items()}


def from_otel(reader: InMemoryMetricReader) -> dict[Series, float]:
    """The data points with their Prometheus names."""
    by_name = {each.otel_name: each for each in CONSUMER.metrics}
    assert len(by_name) == len(CONSUMER.metrics)
    found: dict[Series, float] = {}
    data: Any = reader.get_metrics_data()
    metrics = [m for r in data.resource_metrics for s in r.scope_metrics for m in s.metrics]
    for metric in metrics:
        family = by_name[metric.name]
        assert (metric.unit, metric.description) == (family.unit, family.text)
        for point in metric.data.data_points:
            labels = frozenset(
                (name.replace(".", "_"), str(value)) for name, value in point.attributes.items()
            )
            if isinstance(point, HistogramDataPoint):
                total = 0
                bounds = [*map(float, point.explicit_bounds), math.inf]
                for bound, count in zip(bounds, point.bucket_counts, strict=True):
                    total += count
                    le = "+Inf" if bound == math.inf else repr(bound)
                    found[f"{family.name}_bucket", labels | {("le", le)}] = total
                found[f"{family.name}_count", labels] = point.count
                found[f"{family.name}_sum", labels] = point.sum
            else:
                suffix = "_total" if getattr(metric.data, "is_monotonic", False) else ""
                found[family.name + suffix, labels] = point.value
    return found


async def test_the_lag_is_not_asked_for_if_it_is_not_wanted(fake_clock: FakeClock) -> None:
    registry = CollectorRegistry()
    async with running(fake_clock, "ab", PrometheusConsumerObserver(registry, lag_every=None)):
        assert not [name for name, _ in samples(registry) if name == "source_lag"]


async def test_consumers_of_one_name_add_up(fake_clock: FakeClock) -> None:
    registry = CollectorRegistry()
    first, second = PrometheusConsumerObserver(registry), PrometheusConsumerObserver(registry)
    async with running(fake_clock, "aa", first), running(fake_clock, "aaa", second):
        assert registry.get_sample_value("source_acked_total", {"name": "billing"}) == 5


async def test_an_observer_keeps_no_consumer_alive(fake_clock: FakeClock) -> None:
    registry = CollectorRegistry()
    observer = PrometheusConsumerObserver(registry)
    async with running(fake_clock, "a", observer) as consumer:
        gone = weakref.ref(consumer)
    del consumer
    gc.collect()
    assert gone() is None
    assert registry.get_sample_value("source_acked_total", {"name": "billing"}) == 1


@pytest.mark.parametrize("bad", [{"name": ""}, {"lag_every": 0}, {"lag_every": -1}], ids=str)
@pytest.mark.parametrize("kind", [PrometheusConsumerObserver, OpenTelemetryConsumerObserver])
def test_a_bad_argument_is_refused(kind: Any, bad: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(bad))):
        kind(**bad)


PROGRAM = """
import asyncio, json, os
from prometheus_client import CollectorRegistry, multiprocess, values
values.ValueClass = values.MultiProcessValue()
from sluicegate.telemetry import PrometheusConsumerObserver
from sluicegate.testing import FakeClock
from tests.telemetry.test_consumer_metrics import running

def scrape():
    registry = CollectorRegistry()
    multiprocess.MultiProcessCollector(registry)
    wanted = ("source_acked_total", "consumer_in_flight_messages", "source_lag")
    return [registry.get_sample_value(name, labels) for name in wanted
            for labels in ({"name": "billing"}, {"name": "billing", "topic": "orders", "partition": "0"})
            if (name == "source_lag") == ("topic" in labels)]

async def main(clock):
    async with running(clock, "aab", PrometheusConsumerObserver()):
        found.append(scrape())
    found.append(scrape())

found = []
with FakeClock() as clock:
    clock.run(main(clock))
print(json.dumps(found))
"""


def test_several_processes_share_files(tmp_path: Path) -> None:
    """In multiprocess mode a timer writes them; a closed consumer keeps its counts."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [[2, 1, 1], [2, 0, 0]]
