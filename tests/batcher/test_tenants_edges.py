"""Tenants in unusual cases: sizes and weights far from one, keys, waiting producers, and tenants in
backoff.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from tenant_help import Item, some, tenant_of

from sluicegate import Batcher, ConfigError, Limits, Retry, ThrottledError, stack
from sluicegate.batcher import Tenants
from sluicegate.errors import LedgerFull
from sluicegate.testing import BlockingSink, FakeSink

if TYPE_CHECKING:
    from sluicegate import Batch
    from sluicegate.testing import FakeClock


def limits(**given: Any) -> Limits:
    most: dict[str, Any] = {
        "max_items": 5,
        "max_delay": 60.0,
        "workers": 2,
        "flush_timeout": 10_000.0,
    }
    return Limits(**{**most, **given})


# -- due batches -----------------------------------------------------------------------------------


async def test_what_follows_a_dropped_item_of_its_key_is_due_in_time(fake_clock: FakeClock) -> None:
    """batcher/4a.2: also if another tenant's item took the capacity."""
    sink: FakeSink[Item] = FakeSink()
    most = limits(max_pending_items=10, workers=1, max_delay=1.0)
    async with Batcher(
        sink,
        tenant=tenant_of,
        key=lambda _: "k",
        overflow="drop_oldest",
        limits=most,
        clock=fake_clock,
    ) as batcher:
        await batcher.add(("a", 0))
        await fake_clock.advance(0.1)
        await batcher.add(("a", 1))
        await batcher.add_many([(tenant, 0) for tenant in "bcdefghi"])
        await batcher.add(("j", 0))
        await fake_clock.advance(5.0)
        tally = batcher.tally()
    assert (tally.dropped, tally.delivered) == (1, 10)


# -- waiting ---------------------------------------------------------------------------------------


async def test_whoever_waits_behind_one_that_comes_in_does_not_linger(
    fake_clock: FakeClock,
) -> None:
    """Newly admitted items are sent at once because more items wait for their capacity."""
    sink: FakeSink[Item] = FakeSink()
    began = fake_clock.now()
    caps = Tenants(max_pending_items=5)
    async with Batcher(
        sink, tenant=tenant_of, tenants=caps, limits=limits(max_items=10), clock=fake_clock
    ) as batcher:
        await batcher.add_many(some("a", 5))
        await asyncio.gather(batcher.add_many(some("a", 2, 5)), batcher.add_many(some("a", 4, 7)))
        assert fake_clock.now() == began


async def test_pressure_ends_the_batch_of_a_tenant_that_may_send(fake_clock: FakeClock) -> None:
    """B-T28, batcher/B44: a tenant in backoff, with one worker, could not use it."""

    class Throttles:
        async def write(self, batch: Batch[Item]) -> None:
            if batch.tenant == "greedy":
                raise ThrottledError("slow down", retry_after=1000.0)

    began = fake_clock.now()
    most = limits(workers=1, max_pending_items=15)
    sink = stack(Throttles(), Retry(attempts=3))
    async with Batcher(
        sink, tenant=tenant_of, limits=most, clock=fake_clock, shutdown_deadline=1.0
    ) as batcher:
        await batcher.add_many(some("greedy", 5))
        await fake_clock.run_until_idle()
        await batcher.add_many([*some("greedy", 3, 5), *some("b", 4), *some("c", 3)])
        await batcher.add(("b", 4))
        assert fake_clock.now() == began
        report = await batcher.shutdown(0.0)
    assert report.tally.delivered == 4


async def test_who_does_not_wait_makes_no_pressure(fake_clock: FakeClock) -> None:
    """batcher/B44."""
    sink: FakeSink[Item] = FakeSink()
    caps = Tenants(max_pending_items=4)
    async with Batcher(
        sink, tenant=tenant_of, tenants=caps, overflow="reject", limits=limits(), clock=fake_clock
    ) as batcher:
        await batcher.add_many(some("a", 4))
        with pytest.raises(LedgerFull, match="tenant 'a' has 4 items inside"):
            await batcher.add(("a", 4))
        await batcher.add(("b", 0))
        await fake_clock.run_until_idle()
        assert not sink.calls


async def test_producers_that_wait_for_a_tenants_room_are_seen(fake_clock: FakeClock) -> None:
    """batcher/B44."""
    sink: BlockingSink[Item] = BlockingSink()
    caps = Tenants(max_pending_items=5)
    async with Batcher(
        sink, tenant=tenant_of, tenants=caps, limits=limits(), clock=fake_clock
    ) as batcher:
        await batcher.add_many(some("a", 5))
        waiting = [asyncio.ensure_future(batcher.add(("a", number))) for number in range(5, 8)]
        await fake_clock.run_until_idle()
        waiting[1].cancel()
        await fake_clock.run_until_idle()
        assert (batcher.stats().waiting_producers, batcher.stats().waits) == (2, 3)
        sink.release()
        await asyncio.wait(waiting)
        assert batcher.stats().waiting_producers == 0
        assert batcher.tally().refused == 1


async def test_nothing_is_dropped_for_what_finds_no_room_all_the_same(
    fake_clock: FakeClock,
) -> None:
    """B-T9: one tenant could drop items, the other cannot."""
    sink: BlockingSink[Item] = BlockingSink()
    caps = Tenants(max_pending_items=5)
    async with Batcher(
        sink,
        tenant=tenant_of,
        tenants=caps,
        overflow="drop_oldest",
        limits=limits(),
        clock=fake_clock,
    ) as batcher:
        await batcher.add_many(some("b", 5))
        await fake_clock.run_until_idle()  # the worker has them
        await batcher.add_many(some("a", 4))
        await batcher.add_many([*some("a", 2, 4), ("b", 5)])
        assert batcher.tally().dropped == 3
        sink.release()
    assert sorted(item for call in sink.calls for item in call.items) == [
        *some("a", 4),
        *some("b", 5),
    ]


# -- shares ----------------------------------------------------------------------------------------


async def test_a_batch_far_larger_than_a_turn_is_paid_for_at_once(fake_clock: FakeClock) -> None:
    """batcher/4b.6: the next turn comes a million turns later, and they are not counted one by one."""
    sink: FakeSink[Item] = FakeSink()
    shares = Tenants(weights={"small": 0.01})
    most = limits(max_bytes=10, max_delay=1.0)
    batcher = Batcher(
        sink,
        tenant=tenant_of,
        tenants=shares,
        size_of=lambda item: item[1],
        limits=most,
        clock=fake_clock,
    )
    async with batcher:
        await batcher.add_many(
            [
                ("small", 10**15),
                ("small", 10**18),
                ("small", 7),
                ("large", 10**12),
                ("large", 10**12),
            ]
        )
    assert len(sink.calls) == 5


@pytest.mark.parametrize("weight", [0.0, -1.0, float("nan"), "2", 10**400])
async def test_a_weight_that_has_changed_for_the_worse_is_refused(
    fake_clock: FakeClock, weight: Any
) -> None:
    """B-T30: otherwise it would stop the turns."""
    weights: dict[str, Any] = {"a": 2.0}
    shares = Tenants(weights=weights)
    weights["a"] = weight
    with pytest.raises(ConfigError, match="must be a finite number"):
        Tenants(weights=weights)
    async with Batcher(
        FakeSink[Item](), tenant=tenant_of, tenants=shares, limits=limits(), clock=fake_clock
    ) as batcher:
        with pytest.raises(ConfigError, match="for tenant 'a'"):
            await batcher.add_many([("b", 0), ("a", 0)])
        assert batcher.tally().accepted == 0


class Customer(NamedTuple):
    name: str
    weight: float


async def test_a_tenant_is_shown_as_it_was_given(fake_clock: FakeClock) -> None:
    """For the function of weights, and for the sink."""
    sink: FakeSink[Customer] = FakeSink()
    tenants: list[object] = []

    async def keep(batch: Batch[Customer]) -> None:
        tenants.append(batch.tenant)
        await sink.write(batch)

    shares = Tenants(weights=lambda customer: customer.weight)
    async with Batcher(
        keep, tenant=lambda item: item, tenants=shares, limits=limits(), clock=fake_clock
    ) as batcher:
        await batcher.add(Customer("acme", 2.0))
    assert [type(tenant) for tenant in tenants] == [Customer]


# -- the end ---------------------------------------------------------------------------------------


async def test_a_last_resort_gets_no_mixture_either(fake_clock: FakeClock) -> None:
    """B-T28: no batch mixes tenants."""
    given: list[tuple[object, tuple[Item, ...]]] = []

    async def last_resort(batch: Batch[Item]) -> None:
        given.append((batch.tenant, tuple(batch)))

    class Throttles:
        async def write(self, batch: Batch[Item]) -> None:
            raise ThrottledError("slow down", retry_after=1000.0)

    sink = stack(Throttles(), Retry(attempts=3))
    batcher = Batcher(
        sink, tenant=tenant_of, last_resort=last_resort, limits=limits(), clock=fake_clock
    )
    async with batcher:
        await batcher.add_many(some("a", 5))
        await fake_clock.run_until_idle()
        await batcher.add_many([("b", 0), ("c", 0), ("b", 1)])
        report = await batcher.shutdown(10.0)
    assert report.tally.dead_lettered == 8
    assert sorted(given) == [
        ("a", tuple(some("a", 5))),
        ("b", (("b", 0), ("b", 1))),
        ("c", (("c", 0),)),
    ]
