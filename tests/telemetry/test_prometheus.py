"""Metrics: their names and their values. White box: the table of metrics."""

from __future__ import annotations

import asyncio
import gc
import pickle
import random
from typing import TYPE_CHECKING, Any

import pytest
import tenacity

pytest.importorskip("prometheus_client")
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as openmetrics

from sluicegate import (
    Batcher,
    ConfigError,
    Limits,
    Outcome,
    PermanentError,
    Retry,
    ThrottledError,
    Timeout,
    TransientError,
    stack,
)
from sluicegate.telemetry import Metrics, Observed, PrometheusObserver
from sluicegate.telemetry.batcher_metrics import BATCHER
from sluicegate.testing import BlockingSink, FakeSink, ScriptedSink, fail, hang, partial, slow

if TYPE_CHECKING:
    from sluicegate.batcher import LoopClock
    from sluicegate.testing import FakeClock


def value(registry: CollectorRegistry, metric: str, **labels: str) -> float | None:
    return registry.get_sample_value(metric, {"name": "audit", **labels})


async def test_names_labels_and_buckets(fake_clock: FakeClock) -> None:
    """B-T22, batcher/B32, batcher/B33, batcher/B34, batcher/4a.12: exact, and no tenant among the
    labels.
    """
    registry = CollectorRegistry()
    sink: ScriptedSink[int] = ScriptedSink([partial({0: PermanentError("no")})])
    limits = Limits(max_items=2, max_pending_items=4)
    async with Batcher(
        sink,
        name="audit",
        limits=limits,
        overflow="drop_newest",
        observers=[PrometheusObserver(registry)],
    ) as batcher:
        for item in range(6):
            await batcher.add(item)
        await batcher.flush()
        found = {family.name: family for family in registry.collect()}
    assert {name: family.type for name, family in found.items()} == {
        metric.name: metric.kind.replace("max", "gauge") for metric in BATCHER.metrics
    }
    for metric in BATCHER.metrics:
        for sample in found[metric.name].samples:
            assert set(sample.labels) - {"le"} == set(metric.all_labels)
    sizes = [
        sample.labels["le"]
        for sample in found["batcher_batch_size_items"].samples
        if "le" in sample.labels
    ]
    assert [float(le) for le in sizes] == [1, 5, 10, 50, 100, 500, 1000, 5000, 10000, float("inf")]
    seconds = {
        sample.labels["le"]
        for sample in found["batcher_flush_duration_seconds"].samples
        if "le" in sample.labels
    }
    assert {float(le) for le in seconds} == {
        *(0.001 * 2**power for power in range(16)),
        float("inf"),
    }
    assert max(float(le) for le in seconds if le != "+Inf") == pytest.approx(32.768)


async def test_the_counts_are_what_happened(fake_clock: FakeClock) -> None:
    """B-T22: the writes by reason add up to all writes, and an idle batcher has an empty queue."""
    registry = CollectorRegistry()
    sink: ScriptedSink[int] = ScriptedSink([slow(0.5), partial({1: PermanentError("no")})])
    async with Batcher(
        sink, name="audit", limits=Limits(max_items=3), observers=[PrometheusObserver(registry)]
    ) as batcher:
        await batcher.add_many(range(7))
        await batcher.flush()
        await fake_clock.sleep(0.01)
        assert (
            value(registry, "batcher_queue_depth")
            == value(registry, "batcher_flush_in_flight")
            == 0
        )
    assert value(registry, "batcher_flush_total", reason="size") == 2
    assert value(registry, "batcher_flush_total", reason="manual") == 1
    assert value(registry, "batcher_batch_size_items_sum") == 7
    assert value(registry, "batcher_flush_duration_seconds_count", result="error") == 1
    assert value(registry, "batcher_flush_duration_seconds_sum", result="ok") == pytest.approx(0.5)
    assert value(registry, "batcher_flush_fail_total") == 1
    assert value(registry, "batcher_flush_failure_total", error_type="PermanentError") == 1
    assert value(registry, "batcher_items_total", outcome="delivered") == 6
    assert value(registry, "batcher_flushed_ok_total") == 6
    assert value(registry, "batcher_flushed_fail_total") == 1
    assert value(registry, "batcher_queue_depth") is None, "a closed batcher has no state"


async def test_keys_that_are_held_are_seen(fake_clock: FakeClock) -> None:
    """batcher/4a.10, batcher/4a.12."""
    registry = CollectorRegistry()
    sink: ScriptedSink[str] = ScriptedSink([partial({0: PermanentError("no")})])
    options: dict[str, Any] = {
        "key": lambda item: item[0],
        "on_key_failure": "pause",
        "observers": [PrometheusObserver(registry)],
    }
    async with Batcher(sink, name="audit", limits=Limits(max_items=2), **options) as batcher:
        await batcher.add_many(["a1", "a2", "a3", "b1", "b2"])
        await batcher.flush()
        assert [value(registry, f"batcher_held_{what}") for what in ("keys", "items")] == [1, 2]
        batcher.resume("a")
        await batcher.flush()
        assert [value(registry, f"batcher_held_{what}") for what in ("keys", "items")] == [0, 0]


async def test_states_are_read_when_asked_for(fake_clock: FakeClock) -> None:
    """Queue, capacity, in flight, backing off, oldest age, waiting, throttled (including B-T38's
    gauge).
    """
    registry = CollectorRegistry()
    sink: ScriptedSink[int] = ScriptedSink(
        [slow(1.0), fail(ThrottledError("slow", retry_after=8.0))]
    )
    limits = Limits(max_items=2, max_pending_items=4, workers=1)
    observer = PrometheusObserver(registry)
    async with Batcher(
        stack(sink, Retry()), name="audit", limits=limits, observers=[observer]
    ) as batcher:
        await batcher.add_many(range(4))
        blocked = asyncio.get_running_loop().create_task(batcher.add(4))
        await fake_clock.sleep(0.25)
        names = [
            "queue_depth",
            "queue_capacity_items",
            "flush_in_flight",
            "waiting_producers",
            "oldest_age_seconds",
            "add_blocked_total",
        ]
        assert [value(registry, f"batcher_{name}") for name in names] == [2, 4, 1, 1, 0.25, 1]
        await fake_clock.sleep(1.0)
        assert value(registry, "batcher_backing_off_items") == 2
        assert value(registry, "batcher_throttled_seconds") == pytest.approx(7.75)
        await blocked


@pytest.mark.parametrize("seed", range(20))
async def test_the_tally_adds_up_at_every_scrape(fake_clock: FakeClock, seed: int) -> None:
    """B-T22: in a random schedule, with the values of a scrape."""
    rng = random.Random(seed)
    registry = CollectorRegistry()
    steps: list[Any] = [
        slow(0.3),
        fail(TransientError("t")),
        partial({0: PermanentError("p")}),
        slow(1.0, fail(TransientError("t"))),
    ]
    sink: ScriptedSink[int] = ScriptedSink([rng.choice(steps) for _ in range(12)])
    limits = Limits(max_items=3, workers=2, max_pending_items=9)
    observer = PrometheusObserver(registry)
    async with Batcher(
        stack(sink, Retry(backoff=tenacity.wait_fixed(0.4))),
        name="audit",
        limits=limits,
        observers=[observer],
    ) as batcher:
        for item in range(60):
            batcher.try_add(item)
            await fake_clock.sleep(rng.choice([0.0, 0.0, 0.05, 0.2]))
            tally = batcher.tally()
            tally.verify()
            ended = [
                value(registry, f"batcher_{name}_total") or 0
                for name in ("flushed_ok", "flushed_fail", "dropped_on_shutdown")
            ]
            assert value(registry, "batcher_enqueued_total") == sum(ended) + tally.inside
            assert value(registry, "batcher_backing_off_items") == tally.backing_off
            assert value(registry, "batcher_queue_depth") == tally.queued
        await batcher.flush()
        calls = sum(
            value(registry, "batcher_flush_total", reason=reason) or 0
            for reason in ("size", "time", "manual")
        )
        assert calls == value(registry, "batcher_batch_size_items_count")


async def test_batchers_of_one_name_add_up_and_closed_ones_keep_their_counts(
    fake_clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    """Two batchers, one registry, one of them opened twice; a scrape never fails. Only two that are
    open at a time warn, once.
    """
    registry = CollectorRegistry()
    one = Batcher[int](FakeSink(), name="audit", observers=[PrometheusObserver(registry)])
    two = Batcher[int](
        BlockingSink(),
        name="audit",
        observers=[PrometheusObserver(registry)],
        limits=Limits(max_pending_items=1000),
    )
    for _ in range(2):
        async with one:
            await one.add_many(range(3))
    async with two:
        await two.add_many(range(5))
        assert value(registry, "batcher_enqueued_total") == 11
        assert value(registry, "batcher_queue_depth") == 5
        assert caplog.messages == []
        for _ in range(2):
            async with one:
                pass
        assert caplog.messages == [
            "batcher 'audit' is open twice: the metrics of both add up; give each a name= of its own"
        ]
        two.setup.sink.release()  # type: ignore[attr-defined]
    assert value(registry, "batcher_flushed_ok_total") == 11
    assert b"batcher_enqueued_total" in generate_latest(registry)


async def test_another_thread_may_scrape(real_clock: LoopClock) -> None:
    """Like `prometheus_client`'s own server; also after the loop is closed."""
    registry = CollectorRegistry()
    sink: BlockingSink[int] = BlockingSink()
    async with Batcher(
        sink, name="audit", observers=[PrometheusObserver(registry)], limits=Limits(max_items=2)
    ) as batcher:
        await batcher.add_many(range(3))
        text = await asyncio.to_thread(generate_latest, registry)
        sink.release()
    assert b'batcher_queue_depth{name="audit"} 1.0' in text
    assert b'batcher_enqueued_total{name="audit"} 3.0' in await asyncio.to_thread(
        generate_latest, registry
    )


async def test_no_counter_goes_back(fake_clock: FakeClock) -> None:
    """Dropped items were enqueued once: Prometheus interprets a falling counter as a restart."""
    registry = CollectorRegistry()
    sink: BlockingSink[bytes] = BlockingSink()
    limits = Limits(max_items=2, max_pending_items=100, max_pending_bytes=10)
    observer = PrometheusObserver(registry)
    async with Batcher(
        sink, name="audit", limits=limits, overflow="drop_oldest", observers=[observer]
    ) as batcher:
        for _ in range(8):
            batcher.try_add(b"x")
        assert value(registry, "batcher_enqueued_total") == 8
        batcher.try_add(b"x" * 8)
        assert batcher.tally().dropped == 6
        assert batcher.tally().enqueued == 3
        assert value(registry, "batcher_enqueued_total") == 9
        assert value(registry, "batcher_dropped_total", reason="overflow") == 6
        sink.release()


async def test_a_batcher_in_the_middle_of_a_step(fake_clock: FakeClock) -> None:
    """Whatever its properties return or raise then, the scrape succeeds, and counters keep their
    values.
    """
    registry = CollectorRegistry()
    answers: list[Any] = []

    class Other:
        def stats(self) -> Any:
            answer = answers.pop(0)
            if isinstance(answer, Exception):
                raise answer
            return answer

    async with Batcher(BlockingSink[int](), name="audit", limits=Limits(max_items=2)) as batcher:
        empty = batcher.stats()
        await batcher.add_many(range(5))
        full = batcher.stats()
        batcher.setup.sink.release()  # type: ignore[attr-defined]  # pyright: ignore
    other = Other()
    PrometheusObserver(registry).on_open("audit", other.stats)
    seen: list[float | None] = []
    for answer in (IndexError("nothing read yet"), full, IndexError("in the middle"), empty):
        answers[:] = [answer]
        generate_latest(registry)
        answers[:] = [answer]
        seen.append(value(registry, "batcher_enqueued_total"))
    assert seen == [0, 5, 5, 5]


def test_watching_keeps_no_batcher_alive() -> None:
    """A batcher dropped with items inside still reports it, and its counts stay."""
    registry = CollectorRegistry()
    holder: list[Batcher[int]] = []

    async def main() -> None:
        batcher: Batcher[int] = Batcher(
            FakeSink(), name="audit", observers=[PrometheusObserver(registry)]
        )
        await batcher.__aenter__()
        await batcher.add(1)
        assert value(registry, "batcher_queue_depth") == 1
        holder.append(batcher)
        del batcher
        with pytest.warns(ResourceWarning, match="dropped with items inside"):
            holder.clear()
        gc.collect()

    asyncio.run(main())
    assert value(registry, "batcher_enqueued_total") == 1
    assert value(registry, "batcher_queue_depth") is None


async def test_a_write_that_is_cut_off_is_counted(fake_clock: FakeClock) -> None:
    """A hanging write is the most important one: also inside a timeout (B-T46)."""
    registry = CollectorRegistry()
    sink: ScriptedSink[int] = ScriptedSink([hang()])
    async with Batcher(
        stack(sink, Metrics("tries", registry=registry), Timeout(2.0)), limits=Limits(max_items=2)
    ) as batcher:
        await batcher.add_many(range(2))
        await batcher.flush()
    assert registry.get_sample_value(
        "batcher_flush_duration_seconds_sum", {"name": "tries", "result": "error"}
    ) == pytest.approx(2.0)
    assert (
        registry.get_sample_value(
            "batcher_flush_failure_total", {"name": "tries", "error_type": "CancelledError"}
        )
        == 2
    )
    assert batcher.tally().unknown == 2


async def test_losses_begin_with_zero(fake_clock: FakeClock) -> None:
    """From a series that begins with 5 Prometheus derives no increase, and raises no alert."""
    registry = CollectorRegistry()
    async with Batcher(FakeSink[int](), name="audit", observers=[PrometheusObserver(registry)]):
        assert [
            value(registry, "batcher_items_total", outcome=outcome.value) for outcome in Outcome
        ] == [0] * len(Outcome)
        assert (
            value(registry, "batcher_flush_fail_total")
            == value(registry, "batcher_dropped_total", reason="overflow")
            == 0
        )
        assert value(registry, "batcher_flush_duration_seconds_count", result="error") == 0


async def test_every_outcome_is_counted(fake_clock: FakeClock) -> None:
    """Including items that were never in a batch: returned at the deadline, or dropped."""
    registry = CollectorRegistry()
    limits = Limits(max_items=2, max_pending_items=6)
    sink: ScriptedSink[int] = ScriptedSink([hang()])
    observer = PrometheusObserver(registry)
    async with Batcher(
        sink, name="audit", limits=limits, overflow="drop_newest", observers=[observer]
    ) as batcher:
        for item in range(9):
            await batcher.add(item)
        report = await batcher.shutdown(deadline=0.5)
    counts = {
        outcome: value(registry, "batcher_items_total", outcome=outcome.value)
        for outcome in Outcome
    }
    assert counts == {outcome: report.tally.of(outcome) for outcome in Outcome}
    assert (report.tally.unknown, report.tally.unsent, report.tally.dropped) == (2, 4, 3)


async def test_metrics_inside_a_stack(fake_clock: FakeClock) -> None:
    """batcher/B31: outside a retry one series, inside it every attempt."""
    registry = CollectorRegistry()
    sink: ScriptedSink[int] = ScriptedSink([fail(), fail()])
    around, inside = Metrics("series", registry=registry), Metrics("tries", registry=registry)
    async with Batcher(
        stack(sink, inside, Retry(backoff=tenacity.wait_fixed(1.0)), around),
        limits=Limits(max_items=2),
    ) as batcher:
        await batcher.add_many(range(2))
        await batcher.flush()
    counts = {
        name: registry.get_sample_value("batcher_batch_size_items_count", {"name": name})
        for name in ("series", "tries")
    }
    assert counts == {"series": 1, "tries": 3}
    assert registry.get_sample_value(
        "batcher_flush_duration_seconds_sum", {"name": "series", "result": "ok"}
    ) == pytest.approx(2.0)
    assert (
        registry.get_sample_value(
            "batcher_flush_failure_total", {"name": "tries", "error_type": "TransientError"}
        )
        == 4
    )


async def test_an_observer_that_raises_hurts_nobody(
    fake_clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    """design 3.7, also in a stack."""

    class Raises(PrometheusObserver):
        def on_flushed(self, batch: Any, seconds: float, errors: Any) -> None:
            raise RuntimeError("broken")

    sink: FakeSink[int] = FakeSink()
    async with Batcher(stack(sink, Observed(Raises(CollectorRegistry())))) as batcher:
        await batcher.add(1)
    assert sink.applied == [1]
    assert "further errors of it are not logged" in caplog.text


def test_mistakes() -> None:
    """Each error says what to change."""
    with pytest.raises(ConfigError, match="must be an Observer"):
        Observed(5)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    with pytest.raises(ConfigError, match="name='': must be"):
        Metrics("")


def test_a_stack_with_metrics_travels() -> None:
    """As Spark's writers need: each process has its own global registry."""
    assert isinstance(pickle.loads(pickle.dumps(stack(FakeSink(), Metrics("audit")))), object)


async def test_exemplars_name_a_trace(fake_clock: FakeClock) -> None:
    """batcher/B36: a duration refers to a trace."""
    pytest.importorskip("opentelemetry.sdk")
    from opentelemetry.sdk.trace import TracerProvider

    from sluicegate.telemetry import Tracing

    registry = CollectorRegistry()
    sink = stack(
        FakeSink[int](),
        Metrics("audit", registry=registry, exemplars=True),
        Tracing(tracer_provider=TracerProvider()),
    )
    async with Batcher(sink) as batcher:
        await batcher.add(1)
    assert b'# {trace_id="' in openmetrics(registry)  # type: ignore[no-untyped-call]
