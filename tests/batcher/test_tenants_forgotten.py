"""A tenant without pending items and waiting producers takes no memory."""

from __future__ import annotations

import asyncio
import gc
from typing import TYPE_CHECKING, Any

import pytest
from keyed_help import on_virtual_time
from tenant_help import Item, limits, some, tenant_of

from sluicegate import Batcher, Limits
from sluicegate.batcher import Tenants
from sluicegate.testing import BlockingSink, FakeClock

if TYPE_CHECKING:
    from collections.abc import Callable

    from sluicegate import Batch


async def test_who_gives_up_waiting_leaves_no_tenant_behind(fake_clock: FakeClock) -> None:
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
        waiting.cancel()
        await asyncio.wait([waiting])
        sink.release()
        await batcher.flush()
        await fake_clock.run_until_idle()
        assert len(batcher._dispatcher.gathering.gatherer) == 0  # type: ignore[arg-type]


@pytest.mark.parametrize("overflow", ["block", "drop_newest"])
async def test_what_finds_no_room_leaves_no_tenant_behind(
    fake_clock: FakeClock, overflow: Any
) -> None:
    """Its own limit had capacity, but the ledger had none."""
    sink: BlockingSink[Item] = BlockingSink()
    most = limits(workers=1, max_pending_items=10)
    caps = Tenants(max_pending_items=10)
    async with Batcher(
        sink, tenant=tenant_of, tenants=caps, limits=most, overflow=overflow, clock=fake_clock
    ) as batcher:
        await batcher.add_many(some("a", 10))
        assert not batcher.try_add(("b", 0))
        sink.release()
        await batcher.flush()
        await fake_clock.run_until_idle()
        assert len(batcher._dispatcher.gathering.gatherer) == 0  # type: ignore[arg-type]


def _come_once(count: int, key: Callable[[int], object] | None) -> None:
    async def nothing(batch: Batch[int]) -> None:
        pass

    async def main(clock: FakeClock) -> None:
        async with Batcher(
            nothing, tenant=lambda item: item, key=key, limits=Limits(workers=4), clock=clock
        ) as batcher:
            for item in range(100):
                await batcher.add(item)
            await batcher.flush()
            gc.collect()
            before = len(gc.get_objects())
            for item in range(count):
                await batcher.add(item)
            await batcher.flush()
            await clock.run_until_idle()
            gc.collect()
            assert len(gc.get_objects()) <= before + 100
            accumulator: Any = batcher._dispatcher.gathering.gatherer
            assert len(accumulator) == 0
            assert batcher.tally().delivered == count + 100

    on_virtual_time(main)


KEY_OR_NOT = pytest.mark.parametrize("key", [None, lambda item: item], ids=["no key", "keys"])


@KEY_OR_NOT
def test_tenants_that_come_once_leave_nothing_behind(key: Callable[[int], object] | None) -> None:
    """batcher/4b.7, consumer/C:O6 for tenants."""
    _come_once(500, key)


@KEY_OR_NOT
@pytest.mark.soak
@pytest.mark.timeout(0)
def test_a_hundred_thousand_tenants_that_come_once_leave_nothing_behind(
    key: Callable[[int], object] | None,
) -> None:
    """batcher/4b.7."""
    _come_once(100_000, key)
