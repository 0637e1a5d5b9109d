"""Series per tenant: a bounded number of them, and no counter that goes back."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("prometheus_client")
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from penstock import ConfigError, Outcome, RowBatch
from penstock._core.batch import Lineage, Reason
from penstock.telemetry import PrometheusObserver
from penstock.telemetry._tenants import OTHER, Top


def tell(observer: PrometheusObserver, tenant: object, items: int, outcome: Outcome = Outcome.DELIVERED) -> None:
    batch = RowBatch(range(items), lineage=Lineage(id="b", reason=Reason.SIZE, name="audit", tenant=tenant))
    observer.on_outcome(batch, outcome, range(items))


def series(registry: CollectorRegistry) -> dict[str, float]:
    from prometheus_client import generate_latest

    found: Counter[str] = Counter()
    for family in text_string_to_metric_families(generate_latest(registry).decode()):
        for sample in family.samples:
            if sample.name == "batcher_tenant_items_total":
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
    """B-T51: those with the most items, and every item is in one series."""
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
    assert sum(found.values()) <= 300 * (35 + 200), "an item is in one series; what was shown and is hidden again is in none"
    assert min(found[tenant] for tenant in busy) > 2_000


def test_outcomes_are_told_apart() -> None:
    registry = CollectorRegistry()
    observer = PrometheusObserver(registry, tenants=2)
    tell(observer, "a", 5)
    tell(observer, "a", 2, Outcome.REJECTED)
    labels = {"name": "audit", "tenant": "a"}
    assert registry.get_sample_value("batcher_tenant_items_total", {**labels, "outcome": "delivered"}) == 5
    assert registry.get_sample_value("batcher_tenant_items_total", {**labels, "outcome": "rejected"}) == 2


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 4))
def test_no_counter_goes_back(seed: int, most: int) -> None:
    """A series may end, and begin again with 0; while it is there it grows."""
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
            assert now[tenant] >= before[tenant] or now[tenant] <= 3, "less only where it was hidden in between"
        before = now


def test_whoever_has_more_than_its_part_is_counted() -> None:
    """The promise of space saving."""
    dice = random.Random(3)
    top = Top(2)
    for _ in range(5_000):
        top.seen("heavy" if dice.random() < 0.1 else f"t{dice.randrange(5_000)}", 1)
    assert top.label("heavy") == "heavy"
