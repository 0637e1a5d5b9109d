"""Turns of tenants: deficit round robin, without a clock or a task.

White box: the gatherer of tenants without a batcher.
"""

from __future__ import annotations

import gc
import random
from collections import Counter
from typing import Any

import pytest
from gatherers import OfTenants, gathering
from hypothesis import given, settings
from hypothesis import strategies as st

from sluicegate import Limits
from sluicegate._core.order.keys import identity
from sluicegate.batcher import Reason
from sluicegate.batcher.gathering.gatherer import Gathering, Holding, Shape
from sluicegate.batcher.gathering.pack import AddGroup, Pack, Sealed
from sluicegate.batcher.gathering.tenant_queue import TenantKey, TenantQueue
from sluicegate.batcher.gathering.tenants import TenantGatherer
from sluicegate.batcher.ledger import Ledger
from sluicegate.batcher.reservations import tenant_reservations

Item = tuple[str, int]


def house(
    *,
    size: int = 5,
    weights: dict[Any, float] | None = None,
    sized: bool = False,
    serial: bool = False,
    evicts: bool = False,
    cap_items: int | None = None,
) -> OfTenants[Item]:
    return OfTenants(
        Shape(size, 100 if sized else None, 1.0, sized),
        tenant=lambda item: item[0],
        weight=lambda tenant: (weights or {}).get(tenant, 1.0),
        serial=serial,
        evicts=evicts,
        cap_items=cap_items,
    )


def fill(
    acc: OfTenants[Item],
    tenant: str,
    count: int,
    *,
    now: float = 0.0,
    size: int = 0,
    start: int = 0,
) -> None:
    for number in range(start, start + count):
        acc.offer_one((tenant, number), size, None, now, acc.identity((tenant, number)))


def drained(acc: OfTenants[Item], now: float = 0.0, most: int = 1_000_000) -> list[Sealed[Item]]:
    batches: list[Sealed[Item]] = []
    while len(batches) < most and (batch := acc.take(now)) is not None:
        batches.append(batch)
        acc.done(batch)
    return batches


def jain(shares: list[float]) -> float:
    """https://en.wikipedia.org/wiki/Fairness_measure#Jain's_fairness_index"""
    return sum(shares) ** 2 / (len(shares) * sum(share * share for share in shares))


def test_equal_weights_share_alike_however_much_each_has() -> None:
    """batcher/4b.6: Jain's index."""
    acc = house()
    for place in range(20):
        fill(acc, f"t{place}", 5 * (200 if place else 20_000))
    got = Counter(batch.tenant for batch in drained(acc, most=2_000))
    assert jain([float(count) for count in got.values()]) >= 0.99
    assert len(got) == 20


@pytest.mark.parametrize(
    ("weights", "share"),
    [({"b": 2.0}, 2 / 3), ({"a": 0.5}, 2 / 3), ({"a": 0.01, "b": 0.03}, 3 / 4)],
)
def test_weights_are_the_ratio_of_what_is_sent(weights: dict[Any, float], share: float) -> None:
    acc = house(weights=weights)
    fill(acc, "a", 5_000)
    fill(acc, "b", 5_000)
    sent = Counter(batch.tenant for batch in drained(acc, most=600))
    assert sent["b"] / 600 == pytest.approx(share, abs=0.02)


def test_shares_are_of_bytes_where_items_are_measured() -> None:
    """A tenant with large items sends fewer of them."""
    acc = house(size=1000, sized=True)
    fill(acc, "large", 1_000, size=50)
    fill(acc, "small", 10_000, size=5)
    sent: Counter[object] = Counter()
    for batch in drained(acc, most=400):
        sent[batch.tenant] += batch.bytes
    assert sent["large"] / sent.total() == pytest.approx(0.5, abs=0.02)


def test_a_newcomer_waits_for_one_batch_of_each_other_at_most() -> None:
    acc = house()
    for place in range(10):
        fill(acc, f"t{place}", 500)
    drained(acc, most=37)
    fill(acc, "new", 5)
    turns = [batch.tenant for batch in drained(acc, most=11)]
    assert "new" in turns


def test_nobody_saves_credit_for_later() -> None:
    acc = house()
    for _ in range(50):  # alone, and never in debt
        fill(acc, "early", 5)
        drained(acc)
    fill(acc, "late", 500)
    fill(acc, "early", 500)
    turns = [batch.tenant for batch in drained(acc, most=20)]
    assert turns.count("early") == 10


def test_a_tenants_open_batch_is_due_by_itself() -> None:
    """B-T28: a tenant's timer fires for that tenant only."""
    acc = house()
    fill(acc, "a", 2, now=0.0)
    fill(acc, "b", 3, now=0.4)
    assert acc.due_at() == 1.0
    assert [(batch.tenant, batch.reason, len(batch.items)) for batch in drained(acc, 1.0)] == [
        ("a", Reason.TIME, 2)
    ]
    assert acc.due_at() == pytest.approx(1.4)
    fill(acc, "b", 2, now=0.5)  # full
    assert [(batch.tenant, batch.reason) for batch in drained(acc, 1.0)] == [("b", Reason.SIZE)]
    assert acc.due_at() is None


def test_pressure_ends_the_oldest_tenants_batch_only() -> None:
    """B-T28: a full ledger flushes the oldest tenant."""
    acc = house()
    fill(acc, "young", 1, now=0.3)
    fill(acc, "old", 2, now=0.1)
    acc.seal(Reason.PRESSURE, 0.5)
    assert [(batch.tenant, batch.reason) for batch in drained(acc, 0.5)] == [
        ("old", Reason.PRESSURE)
    ]
    assert acc.queued == 1


def test_a_fence_stands_for_a_moment() -> None:
    acc = house()
    fill(acc, "a", 7)
    fill(acc, "b", 3)
    acc.seal(Reason.MANUAL, 0.0)
    fence = acc.last_number
    fill(acc, "c", 5)
    fill(acc, "a", 5, start=7)
    assert acc.queued_until(fence) == 10
    numbers = {(str(batch.tenant), batch.items[0][1]): batch.number for batch in drained(acc)}
    assert {place for place, number in numbers.items() if number <= fence} == {
        ("a", 0),
        ("a", 5),
        ("b", 0),
    }


def test_with_one_worker_a_tenant_has_one_batch_in_flight() -> None:
    acc = house(serial=True)
    fill(acc, "a", 12)
    fill(acc, "b", 5)
    first, second = acc.take(0.0), acc.take(0.0)
    assert first is not None
    assert second is not None
    assert (first.tenant, second.tenant, acc.take(0.0)) == ("a", "b", None)
    acc.done(first)
    third = acc.take(0.0)
    assert third is not None
    assert third.items[0] == ("a", 5)
    acc.done(third)
    assert acc.take(0.5) is None, "its last batch is open, and not due"
    assert acc.due_at() == 1.0
    assert [batch.items[0] for batch in drained(acc, 1.0)] == [("a", 10)]


def test_what_became_due_behind_a_flight_goes_when_it_lands() -> None:
    acc = house(serial=True)
    fill(acc, "a", 7)
    first = acc.take(0.0)
    assert first is not None
    assert acc.take(5.0) is None
    acc.done(first)
    assert [batch.items[0] for batch in drained(acc, 5.0)] == [("a", 5)]


def test_a_cap_is_a_tenants_own() -> None:
    acc = house(cap_items=10)
    fill(acc, "a", 10)
    keys = (acc.identity(("a", 1)), acc.identity(("b", 1)))
    group = AddGroup((("a", 1), ("b", 1)), keys=keys)
    whole = Gathering(acc, acc.shape, Pack[Item](sized=False))
    needed = {one.key.tenant: one for one in tenant_reservations(whole, group, acc.ledger)}
    full, free = needed["a"], needed["b"]
    assert (full.items, full.fits, free.fits) == (1, False, True)
    assert len(acc) == 1, "asking makes no entry"
    batch = acc.take(0.0)
    assert batch is not None
    assert not full.fits, "what is in flight is inside"
    acc.done(batch)
    assert full.fits


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**32), st.booleans())
def test_nothing_is_lost_or_mixed_and_nothing_stays(seed: int, serial: bool) -> None:
    """B-T28: for any sequence of offers, takes, ends, evictions and seals."""
    dice = random.Random(seed)
    acc = house(size=3, serial=serial, evicts=True)
    offered: dict[str, list[int]] = {}
    sent: dict[str, list[int]] = {}
    flying: list[Sealed[Item]] = []
    now = 0.0
    for step in range(120):
        now += dice.choice([0.0, 0.1, 0.6])
        action = dice.random()
        if action < 0.55:
            tenant = dice.choice("abcdef")
            fill(acc, tenant, 1, now=now, start=step)
            offered.setdefault(tenant, []).append(step)
        elif action < 0.75 and (batch := acc.take(now)) is not None:
            flying.append(batch)
            assert {item[0] for item in batch.items} == {batch.tenant}
            sent.setdefault(str(batch.tenant), []).extend(item[1] for item in batch.items)
            if serial:
                assert len({each.tenant for each in flying}) == len(flying)
        elif action < 0.9 and flying:
            acc.done(flying.pop(dice.randrange(len(flying))))
        elif action < 0.95:
            acc.seal(dice.choice([Reason.MANUAL, Reason.PRESSURE]), now)
        elif acc.queued:
            ages = {
                queue.tenant: age
                for queue in acc.queues()
                if (age := queue.gatherer.snapshot().oldest_at) is not None
            }
            evicted = acc.evict_oldest()
            assert evicted is not None
            assert ages[evicted.item[0]] == min(ages.values())
            offered[evicted.item[0]].remove(evicted.item[1])
        inside = sum(map(len, offered.values())) - sum(map(len, sent.values()))
        assert acc.queued == inside
    acc.seal(Reason.SHUTDOWN, now)
    while flying or acc.queued:
        while (batch := acc.take(now)) is not None:
            flying.append(batch)
            sent.setdefault(str(batch.tenant), []).extend(item[1] for item in batch.items)
        acc.done(flying.pop(0))
    assert {tenant: numbers for tenant, numbers in sent.items() if numbers} == {
        t: n for t, n in offered.items() if n
    }
    assert (len(acc), acc.queued, acc.due_at()) == (0, 0, None)


def test_nothing_is_left_of_tenants_that_came_once() -> None:
    """batcher/4b.7: 10,000 here; the soak has 100,000."""
    come_once(10_000)


@pytest.mark.soak
def test_nothing_is_left_of_many_more_tenants_that_came_once() -> None:
    come_once(100_000)


def come_once(count: int) -> None:
    acc = house()
    for number in range(count):
        fill(acc, f"t{number}", 1, now=number / 1000)
        drained(acc, number / 1000)
    drained(acc, 1e9)
    gc.collect()
    assert len(acc) == 0
    assert not [each for each in gc.get_objects() if type(each) is TenantQueue]


def test_tenants_are_told_apart_as_keys_are() -> None:
    acc = house()
    assert acc.identity(("1", 0)).tenant == "1"
    assert identity(1) != identity("1")


# -- held keys -------------------------------------------------------------------------------------


def offer(acc: Any, item: Item, now: float) -> None:
    acc.offer(AddGroup((item,), keys=(acc.identity(item),)), now)


def with_held(held: int) -> tuple[TenantGatherer[Item], Holding, Ledger]:
    """A tenant `held` whose first item of each of this many keys has failed, with as many more
    behind them.
    """
    made, ledger = gathering(
        limits=Limits(max_items=5, workers=4),
        key=lambda item: item[1],
        tenant=lambda item: item[0],
        on_key_failure="pause",
    )
    acc, holds = made.gatherer, made.holds
    assert isinstance(acc, TenantGatherer)
    assert holds is not None
    for number in range(held):
        offer(acc, ("held", number), 0.0)
    while (batch := acc.take(10.0)) is not None:
        holds.stop(batch, range(len(batch.items)))
        acc.done(batch)
    for number in range(held):
        offer(acc, ("held", number), 10.0)
    return acc, holds, ledger


def test_a_tenant_of_which_all_is_held_has_no_turn() -> None:
    """batcher/4b.6: it is not even examined."""
    acc, holds, ledger = with_held(12)
    assert (holds.keys, holds.items, ledger.queued) == (12, 12, 12)
    assert (acc.is_ready, acc.due_at(), acc.take(99.0)) == (False, None, None)
    assert not acc._turns._ring
    assert holds.let_go(TenantKey("held", 3), 100.0) == 1
    batch = acc.take(100.0)
    assert batch is not None
    assert batch.items == [("held", 3)]
    assert (holds.keys, holds.items) == (11, 11)


def test_what_one_tenant_holds_costs_the_others_no_turn() -> None:
    """batcher/4b.6: the others send the same items in the same order as without that tenant."""
    sent: list[list[object]] = []
    for held in (0, 100):
        acc, _, _ = with_held(held)
        for number in range(300):
            offer(acc, ("abc"[number % 3], number), 20.0)
        batches: list[object] = []
        while (batch := acc.take(30.0)) is not None:
            batches.append((batch.tenant, batch.items))
        sent.append(batches)
    assert sent[0] == sent[1]
    assert len(sent[0]) == 60
