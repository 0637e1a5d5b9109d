"""Limits of each tenant: producers of a full one wait, or its items are refused or dropped; other
tenants continue.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest
from tenant_help import Item, Watched, limits, some, tenant_of

from sluicegate import AddTimeout, Batcher, ClosedError
from sluicegate.batcher import Tenants
from sluicegate.errors import ItemTooLarge, LedgerFull
from sluicegate.testing import BlockingSink, FakeClock, FakeSink


async def test_a_full_tenant_waits_for_its_own_room_and_others_do_not(
    fake_clock: FakeClock,
) -> None:
    """batcher/B44: a smaller limit per tenant."""
    sink: BlockingSink[Item] = BlockingSink()
    caps = Tenants(max_pending_items=10)
    async with Batcher(
        sink, tenant=tenant_of, tenants=caps, limits=limits(), clock=fake_clock
    ) as batcher:
        for item in some("a", 10):
            await batcher.add(item)
        with pytest.raises(
            AddTimeout, match=r"no room within 0\.5 s; tenant 'a' has 10 items inside"
        ):
            await batcher.add(("a", 10), timeout=0.5)
        assert not batcher.try_add(("a", 10))
        await batcher.add(("b", 0), timeout=0)
        waiting = asyncio.ensure_future(batcher.add(("a", 10)))
        await fake_clock.run_until_idle()
        assert not waiting.done()
        sink.release()
        await waiting
    assert batcher.tally().delivered == 12
    assert batcher.tally().refused == 2


async def test_a_tenant_that_waits_does_not_linger(fake_clock: FakeClock) -> None:
    """Otherwise a limit below the batch size would make every producer wait for `max_delay`."""
    sink: FakeSink[Item] = FakeSink()
    caps = Tenants(max_pending_items=3)
    began = fake_clock.now()
    async with Batcher(
        sink, tenant=tenant_of, tenants=caps, limits=limits(), clock=fake_clock
    ) as batcher:
        for item in some("a", 9):
            await batcher.add(item)
        assert fake_clock.now() == began
    assert [call.reason for call in sink.calls] == ["pressure", "pressure", "shutdown"]


async def test_a_tenant_that_many_wait_for_does_not_linger(fake_clock: FakeClock) -> None:
    """Items admitted together are sent together, at once, while more wait."""
    sink: FakeSink[Item] = FakeSink()
    began = fake_clock.now()
    batcher = Batcher(
        sink,
        tenant=tenant_of,
        tenants=Tenants(max_pending_items=3),
        limits=limits(),
        clock=fake_clock,
    )
    async with batcher:
        await asyncio.gather(*(batcher.add(item) for item in some("a", 8)))
        assert fake_clock.now() == began
    assert [call.items for call in sink.calls] == [
        tuple(some("a", 3)),
        tuple(some("a", 3, 3)),
        tuple(some("a", 2, 6)),
    ]


@pytest.mark.parametrize("overflow", ["reject", "drop_newest", "drop_oldest"])
async def test_what_a_full_tenant_does_instead_of_waiting(
    fake_clock: FakeClock, overflow: Any
) -> None:
    """B-T28: it rejects, or drops the newest or the oldest."""
    sink: BlockingSink[Item] = BlockingSink()
    caps = Tenants(max_pending_items=10)
    batcher = Batcher(
        sink,
        tenant=tenant_of,
        tenants=caps,
        limits=limits(workers=1),
        overflow=overflow,
        clock=fake_clock,
    )
    async with batcher:
        await batcher.add_many(some("b", 3))
        for item in some("a", 10):
            await batcher.add(item)
        await fake_clock.run_until_idle()
        if overflow == "reject":
            with pytest.raises(LedgerFull, match="tenant 'a'"):
                await batcher.add(("a", 10))
        else:
            await batcher.add(("a", 10))
            assert batcher.try_add(("a", 11)) is (overflow == "drop_oldest")
        sink.release()
    tally = batcher.tally()
    assert (tally.refused, tally.dropped) == {
        "reject": (1, 0),
        "drop_newest": (0, 2),
        "drop_oldest": (0, 2),
    }[overflow]
    kept = [item for call in sink.calls for item in call.items if item[0] == "a"]
    assert len(kept) == 10
    assert (("a", 11) in kept) is (overflow == "drop_oldest")
    assert len([item for call in sink.calls for item in call.items if item[0] == "b"]) == 3


async def test_nothing_is_dropped_for_what_does_not_get_in_all_the_same(
    fake_clock: FakeClock,
) -> None:
    """batcher/B10: no item of one tenant is dropped if the other tenant has none to drop."""
    sink: BlockingSink[Any] = BlockingSink()
    caps = Tenants(max_pending_items=4)
    most = limits(max_items=2)
    batcher: Batcher[Any] = Batcher(
        sink, tenant=tenant_of, tenants=caps, limits=most, overflow="drop_oldest", clock=fake_clock
    )
    async with batcher:
        await batcher.add_many([(1, number) for number in range(4)])
        await fake_clock.run_until_idle()
        older = [await batcher.submit((tenant, number)) for tenant in (0, 2) for number in range(4)]
        await batcher.add_many([(0, 4), (1, 4), (2, 4)])
        assert batcher.tally().dropped == 3
        assert [receipt.outcome for receipt in older] == [None] * 8
        sink.release()
    assert batcher.tally().delivered == 12


async def test_a_full_ledger_flushes_the_oldest_tenant(fake_clock: FakeClock) -> None:
    """B-T28, batcher/B44: the global limit."""
    sink: FakeSink[Item] = FakeSink()
    most = limits(max_items=5, workers=1, max_pending_items=10, max_delay=60.0)
    async with Batcher(sink, tenant=tenant_of, limits=most, clock=fake_clock) as batcher:
        for number in range(12):
            await batcher.add((f"t{number}", 0))
        await fake_clock.run_until_idle()
        assert [call.items[0][0] for call in sink.calls] == ["t0", "t1"]
        assert {call.reason for call in sink.calls} == {"pressure"}


async def test_what_can_never_fit_is_refused(fake_clock: FakeClock) -> None:
    batcher = Batcher(
        FakeSink[Item](),
        tenant=tenant_of,
        tenants=Tenants(max_pending_items=3),
        limits=limits(),
        clock=fake_clock,
    )
    async with batcher:
        with pytest.raises(ItemTooLarge, match="never fit for tenant 'a'"):
            await batcher.add_many(some("a", 4))
        assert batcher.tally().refused == 4


async def test_whoever_waits_for_a_tenants_room_is_turned_away_by_a_shutdown(
    fake_clock: FakeClock,
) -> None:
    sink: BlockingSink[Item] = BlockingSink()
    async with Batcher(
        sink,
        tenant=tenant_of,
        tenants=Tenants(max_pending_items=5),
        limits=limits(),
        clock=fake_clock,
    ) as batcher:
        await batcher.add_many(some("a", 5))
        waiting = asyncio.ensure_future(batcher.add(("a", 5)))
        await fake_clock.run_until_idle()
        closing = asyncio.ensure_future(batcher.shutdown())
        await fake_clock.run_until_idle()
        sink.release()
        await closing
        with pytest.raises(ClosedError):
            await waiting


@pytest.mark.parametrize("tries", [1, 3])
async def test_a_cap_holds_for_who_waits_for_several_tenants(
    fake_clock: FakeClock, tries: int
) -> None:
    """At every moment: a tenant may have disappeared and returned while the producer waited for the
    other one.
    """
    sink = Watched(fake_clock, seconds=0.3)
    batcher = Batcher(
        sink,
        tenant=tenant_of,
        tenants=Tenants(max_pending_items=5),
        limits=limits(),
        clock=fake_clock,
    )
    inside: Counter[str] = Counter()
    async with batcher:

        async def together(number: int) -> None:
            await batcher.add_many([*some("a", 3, 10 * number), *some("b", 3, 10 * number)])
            for share in batcher._dispatcher.gathering.gatherer.queues():  # type: ignore[attr-defined]
                inside[share.tenant] = max(inside[share.tenant], share.ledger.inside)

        await asyncio.gather(*(together(number) for number in range(3 * tries)))
    assert max(inside.values()) <= 5
    assert batcher.tally().delivered == 18 * tries
