"""The cost of an item depends neither on the number of keys or tenants nor on the waiting items of
one of them. Counted in calls, not in seconds.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import pytest

from sluicegate import Batcher, Limits
from sluicegate.batcher import Tenants
from sluicegate.testing import BlockingSink, FakeClock, FakeSink

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from types import FrameType

Item = tuple[int, int]


async def calls(work: Callable[[], Awaitable[object]]) -> int:
    """The number of Python and C function calls of some work."""
    count = 0

    def count_one(_frame: FrameType, event: str, _argument: object) -> None:
        nonlocal count
        count += event in {"call", "c_call"}

    before = sys.getprofile()
    sys.setprofile(count_one)
    try:
        await work()
    finally:
        sys.setprofile(before)
    return count


def tenants(count: int, clock: FakeClock, sink: Any, **settings: Any) -> Batcher[Item]:
    limits = Limits(max_items=10, max_delay=3600.0, workers=4, max_pending_items=2 * count)
    return Batcher(sink, tenant=lambda item: item[0], limits=limits, clock=clock, **settings)


async def a_flush(count: int, clock: FakeClock) -> int:
    async with tenants(count, clock, FakeSink[Item]()) as batcher:
        await batcher.add_many([(tenant, 0) for tenant in range(count)])
        return await calls(batcher.flush)


async def a_shutdown(count: int, clock: FakeClock) -> int:
    async with tenants(
        count, clock, FakeSink[Item](), tenants=Tenants(max_pending_items=5)
    ) as batcher:
        await batcher.add_many([(tenant, 0) for tenant in range(count)])
        return await calls(batcher.shutdown)


async def dropping(make: Callable[..., Batcher[Item]], count: int, clock: FakeClock) -> int:
    sink: BlockingSink[Item] = BlockingSink()
    async with make(count, clock, sink, overflow="drop_oldest") as batcher:
        await batcher.add_many([(owner, number) for number in range(2) for owner in range(count)])

        async def add() -> None:
            for owner in range(count):
                await batcher.add((owner, 2))

        needed = await calls(add)
        assert batcher.tally().dropped == count
        sink.release()
    return needed


async def tenants_that_drop_the_oldest(count: int, clock: FakeClock) -> int:
    return await dropping(tenants, count, clock)


async def coming_and_going(count: int, clock: FakeClock) -> int:
    """A batch of each key or tenant, filled before its time."""
    async with tenants(count, clock, FakeSink[Item]()) as batcher:

        async def come() -> None:
            for tenant in range(count):
                await batcher.add_many([(tenant, number) for number in range(10)])
            await clock.run_until_idle()

        return await calls(come)


def keys(count: int, clock: FakeClock, sink: Any, **settings: Any) -> Batcher[Item]:
    limits = Limits(max_items=10, max_delay=3600.0, workers=4, max_pending_items=2 * count)
    return Batcher(sink, key=lambda item: item[0], limits=limits, clock=clock, **settings)


async def a_flush_of_keys(count: int, clock: FakeClock) -> int:
    async with keys(count, clock, FakeSink[Item]()) as batcher:
        await batcher.add_many([(key, number) for number in range(2) for key in range(count)])
        return await calls(batcher.flush)


async def a_flush_of_one_key(count: int, clock: FakeClock) -> int:
    async with keys(count, clock, FakeSink[Item]()) as batcher:
        await batcher.add_many([(0, number) for number in range(count)])
        return await calls(batcher.flush)


async def keys_that_drop_the_oldest(count: int, clock: FakeClock) -> int:
    return await dropping(keys, count, clock)


TENANTS = [a_flush, a_shutdown, tenants_that_drop_the_oldest, coming_and_going]
KEYS = [a_flush_of_keys, a_flush_of_one_key, keys_that_drop_the_oldest]


@pytest.mark.parametrize("what", [*TENANTS, *KEYS])
async def test_ten_times_as_many_cost_ten_times_as_much(
    what: Callable[[int, FakeClock], Awaitable[int]], fake_clock: FakeClock
) -> None:
    """consumer/C:O6, and the same for tenants."""
    few = await what(40, fake_clock)
    many = await what(400, fake_clock)
    assert many < 13 * few
