"""Series per tenant: their number is limited, and no counter decreases.

White box: the counts of tenants, made by hand, and their reading.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("prometheus_client")
from prometheus_client import CollectorRegistry

from sluicegate import Batcher, ConfigError, Limits, Outcome, RowBatch
from sluicegate._core.batch import Lineage
from sluicegate.batcher import Reason, Tenants
from sluicegate.batcher.report import TenantStats
from sluicegate.telemetry import PrometheusObserver
from sluicegate.telemetry.batcher_metrics import BATCHER
from sluicegate.telemetry.prometheus import PrometheusInstruments
from sluicegate.telemetry.readings import OTHER, Top

if TYPE_CHECKING:
    from sluicegate import Batch
    from sluicegate.testing import FakeClock


def tell(
    observer: PrometheusObserver, tenant: object, items: int, outcome: Outcome = Outcome.DELIVERED
) -> None:
    batch = RowBatch(
        range(items), lineage=Lineage(id="b", reason=Reason.SIZE, name="audit", tenant=tenant)
    )
    observer.on_outcome(batch, outcome, range(items))


def number_of_series(registry: CollectorRegistry) -> int:
    return sum(len(family.samples) for family in registry.collect())


def series(
    registry: CollectorRegistry, name: str = "batcher_tenant_items_total"
) -> dict[str, float]:
    found: Counter[str] = Counter()
    for family in registry.collect():
        for sample in family.samples:
            if sample.name == name:
                found[sample.labels["tenant"]] += int(sample.value)
    return dict(found)


def test_there_is_no_tenant_label_unless_it_is_asked_for() -> None:
    """batcher/B34."""
    registry = CollectorRegistry()
    tell(PrometheusObserver(registry), "a", 5)
    assert series(registry) == {}
    with pytest.raises(ConfigError, match="tenants=-1"):
        PrometheusObserver(registry, tenants=-1)


def test_ten_thousand_tenants_have_twenty_series_and_other() -> None:
    """B-T51: the tenants with the most items, and every item is in one series."""
    registry = CollectorRegistry()
    observer = PrometheusObserver(registry, tenants=20)
    dice = random.Random(1)
    busy = [f"busy{n}" for n in range(20)]
    for _ in range(300):
        for tenant in busy:
            tell(observer, tenant, 10)
        for _ in range(35):
            tell(observer, f"t{dice.randrange(10_000)}", 1)
    found = series(registry)
    assert set(found) == {*busy, OTHER}
    assert found[OTHER] >= 300 * 35
    assert sum(found.values()) <= 300 * (35 + 200), (
        "an item is in one series; what was shown and is hidden again is in none"
    )
    assert min(found[tenant] for tenant in busy) > 2_000


@pytest.mark.parametrize("tenants", [30, 10_000])
async def test_ten_thousand_tenants_of_a_batcher_have_no_more_series_than_thirty(
    fake_clock: FakeClock, tenants: int
) -> None:
    """B-T51, batcher/B43, batcher/4a.12: with a real batcher, with a full ledger and idle; nothing
    accumulates.
    """
    registry = CollectorRegistry()
    observer = PrometheusObserver(registry, tenants=20)
    gate = asyncio.Event()

    async def sink(batch: Batch[int]) -> None:
        await gate.wait()

    limits = Limits(max_items=500, max_pending_items=20_000, workers=4)
    async with Batcher(
        sink, tenant=lambda item: item % tenants, limits=limits, observers=[observer]
    ) as batcher:
        await batcher.add_many(range(10_000))
        await batcher.add_many(number % 3 for number in range(3_000))
        stats = batcher.stats()
        assert stats.tenants == tenants
        assert len(stats.busiest_tenants) == 20
        assert [tenant.tenant for tenant in stats.busiest_tenants[:3]] == [0, 1, 2]
        assert sum(series(registry, "batcher_tenant_pending_items").values()) == 13_000
        full = len(series(registry, "batcher_tenant_pending_items"))
        gate.set()
    assert full == (21 if tenants == 30 else 4), (
        "those of 10,000 that have a hundredth of the ledger, and all others as one"
    )
    assert series(registry).keys() - {OTHER} <= {str(tenant) for tenant in range(tenants)}
    assert len(series(registry)) == 21
    assert number_of_series(registry) < 155
    (top,) = PrometheusInstruments.of(registry, BATCHER)._tops.values()
    assert len(top._counted) <= 200


async def test_a_tenant_that_waits_and_one_that_is_full_are_told_of(fake_clock: FakeClock) -> None:
    """batcher/B43, batcher/B44: the items of each inside, their age, and the producers that wait
    for its part of the ledger.
    """

    async def sink(batch: Batch[str]) -> None:
        await fake_clock.sleep(5.0)

    limits = Limits(max_items=3, max_delay=10.0)
    async with Batcher(
        sink, tenant=lambda item: item[0], tenants=Tenants(max_pending_items=4), limits=limits
    ) as batcher:
        assert (batcher.stats().tenants, batcher.stats().busiest_tenants) == (0, ())
        await batcher.add_many(["a1", "a2", "a3", "a4", "b1"])
        await fake_clock.sleep(2.0)
        waiting = asyncio.create_task(batcher.add("a5"))
        await fake_clock.sleep(1.0)
        stats = batcher.stats()
        assert stats.tenants == 2
        assert stats.busiest_tenants == (
            TenantStats(
                tenant="a",
                inside=4,
                queued=1,
                in_flight_batches=1,
                held_keys=0,
                held_items=0,
                waiting_producers=1,
                oldest_age=3.0,
            ),
            TenantStats(
                tenant="b",
                inside=1,
                queued=1,
                in_flight_batches=0,
                held_keys=0,
                held_items=0,
                waiting_producers=0,
                oldest_age=3.0,
            ),
        )
        await waiting


def test_outcomes_are_told_apart() -> None:
    registry = CollectorRegistry()
    observer = PrometheusObserver(registry, tenants=2)
    tell(observer, "a", 5)
    tell(observer, "a", 2, Outcome.REJECTED)
    labels = {"name": "audit", "tenant": "a"}
    assert (
        registry.get_sample_value("batcher_tenant_items_total", {**labels, "outcome": "delivered"})
        == 5
    )
    assert (
        registry.get_sample_value("batcher_tenant_items_total", {**labels, "outcome": "rejected"})
        == 2
    )


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 4))
def test_no_counter_goes_back(seed: int, most: int) -> None:
    """A series may end and start again at 0; while it exists, it grows."""
    dice = random.Random(seed)
    registry = CollectorRegistry()
    observer = PrometheusObserver(registry, tenants=most)
    before: dict[str, float] = {}
    for _ in range(60):
        tell(observer, f"t{min(int(dice.expovariate(0.2)), 99)}", dice.randrange(1, 4))
        now = series(registry)
        assert len(now.keys() - {OTHER}) <= most
        assert now.get(OTHER, 0) >= before.get(OTHER, 0)
        for tenant in now.keys() & before.keys():
            assert now[tenant] >= before[tenant] or now[tenant] <= 3, (
                "less only where it was hidden in between"
            )
        before = now


def test_whoever_has_more_than_its_part_is_counted() -> None:
    """The guarantee of the space-saving algorithm."""
    dice = random.Random(3)
    top = Top(2)
    for _ in range(5_000):
        top.seen("heavy" if dice.random() < 0.1 else f"t{dice.randrange(5_000)}", 1)
    assert top.label("heavy") == "heavy"
