"""Subscriptions in memory, on virtual time.

White box: the name of a slot's lock, and the start of a subscription.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from sluicegate import ConfigError
from sluicegate._core.subscriptions import SLOTS, SubscriptionStart, locked_slot, slot_lock
from sluicegate.consumer import MemorySubscriptions, Move, Position

if TYPE_CHECKING:
    from sluicegate.testing import FakeClock

NAME = "orders"
START = SubscriptionStart(dict.fromkeys(range(SLOTS), 0))
LOCK = slot_lock(NAME, 7)


def moves(before: int, after: int) -> dict[int, Move]:
    return {7: Move(Position(before), Position(after))}


async def test_a_lease_that_is_not_kept_ends_when_it_is_over(fake_clock: FakeClock) -> None:
    """S-T8: a holder that never unlocks does not hold a lock forever."""
    one = MemorySubscriptions(lease=30.0, clock=fake_clock)
    other = MemorySubscriptions(shared_with=one, clock=fake_clock)
    assert [*await one.lock([LOCK])] == [LOCK]
    await fake_clock.advance(29.999)
    assert [*await other.lock([LOCK])] == []
    assert [*await one.keep([LOCK])] == [LOCK]
    await fake_clock.advance(29.999)
    assert [*await other.lock([LOCK])] == []
    await fake_clock.advance(0.001)
    assert [*await other.lock([LOCK])] == [LOCK]
    assert [*await one.keep([LOCK])] == []


async def test_a_lease_that_ran_out_is_kept_if_it_is_still_free(fake_clock: FakeClock) -> None:
    one = MemorySubscriptions(clock=fake_clock)
    other = MemorySubscriptions(shared_with=one, clock=fake_clock)
    await one.lock([LOCK])
    await fake_clock.advance(100.0)
    assert [*await one.keep([LOCK])] == [LOCK]
    assert [*await other.lock([LOCK])] == []


async def test_a_store_of_a_lost_lock_changes_nothing(fake_clock: FakeClock) -> None:
    """S-T11: the zombie knows the position, and the new holder has not moved it yet."""
    zombie = MemorySubscriptions(clock=fake_clock)
    other = MemorySubscriptions(shared_with=zombie, clock=fake_clock)
    await zombie.initialize(NAME, START)
    await zombie.lock([LOCK])
    await fake_clock.advance(30.0)
    await other.lock([LOCK])
    assert [*await zombie.store(NAME, moves(0, 9))] == []
    assert [*await other.store(NAME, moves(0, 5))] == [7]
    assert [*await zombie.store(NAME, moves(5, 9))] == []
    found = await zombie.read(NAME)
    assert found is not None
    assert found.positions[7] == Position(5)


async def test_members_that_no_longer_ask_do_not_count(fake_clock: FakeClock) -> None:
    one = MemorySubscriptions(lease=30.0, clock=fake_clock)
    other = MemorySubscriptions(shared_with=one, lease=timedelta(seconds=10), clock=fake_clock)
    assert await one.members(NAME) == 1
    assert await other.members(NAME) == 2
    await fake_clock.advance(10.0)
    assert await one.members(NAME) == 1


async def test_sources_in_several_threads_share_a_memory(fake_clock: FakeClock) -> None:
    """S9: each of many concurrent starts and moves counts once."""
    first = MemorySubscriptions()

    def work(number: int) -> tuple[int, int]:
        async def run() -> tuple[int, int]:
            async with MemorySubscriptions(shared_with=first) as mine:
                starts = await mine.initialize(NAME, START)
                moved = 0
                for turn in range(200):
                    moved += len(await mine.store(NAME, moves(turn, turn + 1)))
                return int(starts), moved

        return asyncio.run(run())

    results = await asyncio.gather(*[asyncio.to_thread(work, number) for number in range(4)])
    assert sum(starts for starts, _ in results) == 1
    assert sum(moved for _, moved in results) <= 200
    found = await first.read(NAME)
    assert found is not None
    assert found.positions[7].offset == sum(moved for _, moved in results)


def test_the_name_of_a_lock_is_that_of_its_slot() -> None:
    for name in ("orders", "a/b", "a/1", "/"):
        assert locked_slot(slot_lock(name, 255)) == (name, 255)
    for lock in ("orders", "/1", "orders/256", "orders/-1", "orders/x", "orders/"):
        with pytest.raises(ConfigError, match="must be SUBSCRIPTION/SLOT"):
            locked_slot(lock)


def test_wrong_arguments_are_refused() -> None:
    for lease in (0, -1, float("nan"), "30"):
        with pytest.raises(ConfigError, match="lease="):
            MemorySubscriptions(lease=lease)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="shared_with="):
        MemorySubscriptions(shared_with=object())  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="clock="):
        MemorySubscriptions(clock=1)  # type: ignore[arg-type]
