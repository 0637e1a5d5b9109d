"""The conformance suite of the locks of subscriptions.

    class TestMyLocks(SubscriptionLocksConformance):
        def locks(self):
            return MyLocks("...")

1. Each test uses its own names, so other locks may be held at the same place.
2. The tests run on their own loop in real time, and wait only for the place.
3. Locks that count members, or that are one object with the positions, are also tested for that.

White box: the names of the locks of slots, and how an object is opened.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest

from sluicegate._core.opening import opened
from sluicegate._core.source import Position
from sluicegate._core.subscriptions import (
    SLOTS,
    CountsMembers,
    Move,
    SubscriptionStart,
    SubscriptionState,
    slot_lock,
)

if TYPE_CHECKING:
    from collections.abc import Collection

    from sluicegate._core.clock import LoopClock
    from sluicegate._core.subscriptions import SubscriptionLocks


class SubscriptionLocksConformance(ABC):
    """The suite of every `SubscriptionLocks`. Name the subclass `Test...`."""

    @abstractmethod
    def locks(self) -> SubscriptionLocks:
        """Return a new object, not yet opened, of the same place in every call."""

    async def lose(self, locks: SubscriptionLocks, names: Collection[str]) -> None:
        """Make an object lose these locks without noticing: its leases expire, or its session ends.

        Without an implementation, the tests of lost locks are skipped.
        """
        pytest.skip("the suite cannot make it lose a lock")

    async def subscription(self, locks: SubscriptionLocks) -> str:
        """Make a new subscription with slots that can be locked; return its name."""
        name = f"subscription {uuid4().hex}"
        if isinstance(locks, SubscriptionState):
            await locks.initialize(name, SubscriptionStart(dict.fromkeys(range(SLOTS), 0)))
        return name

    async def test_a_lock_has_one_holder(self, real_clock: LoopClock) -> None:
        """A lock is exclusive, and not reentrant."""
        async with AsyncExitStack() as stack:
            one, other = await self._open_several(stack, 2)
            names = await self._names(one, 3)
            assert {*await one.lock(names)} == {*names}
            for locks in (one, other):
                assert [*await locks.lock(names)] == []
            await one.unlock(names[:1])
            assert [*await other.lock(names)] == names[:1]
            assert [*await one.lock(names)] == []

    async def test_locks_that_are_not_free_are_left_out(self, real_clock: LoopClock) -> None:
        """The call does not wait for them."""
        async with AsyncExitStack() as stack:
            one, other = await self._open_several(stack, 2)
            names = await self._names(one, 6)
            assert {*await one.lock(names[::2])} == {*names[::2]}
            assert {*await other.lock([*names, *names])} == {*names[1::2]}
            assert [*await other.lock([])] == []

    async def test_only_the_holder_frees_a_lock(self, real_clock: LoopClock) -> None:
        """Unlocking a lock that is not held has no effect."""
        async with AsyncExitStack() as stack:
            one, other = await self._open_several(stack, 2)
            names = await self._names(one, 2)
            await other.unlock(names)
            assert {*await one.lock(names)} == {*names}
            await other.unlock(names)
            assert [*await other.lock(names)] == []
            for _ in range(2):
                await one.unlock(names)
            await one.unlock([])
            assert {*await other.lock(names)} == {*names}

    async def test_locks_that_are_kept_are_those_that_are_held(self, real_clock: LoopClock) -> None:
        """`keep` takes no other lock."""
        async with AsyncExitStack() as stack:
            one, other = await self._open_several(stack, 2)
            names = await self._names(one, 4)
            await one.lock(names[:2])
            await other.lock(names[2:3])
            assert {*await one.keep(names)} == {*names[:2]}
            await one.unlock(names[:1])
            assert {*await one.keep(names)} == {names[1]}
            assert [*await one.keep([])] == []
            assert {*await other.lock(names)} == {names[0], names[3]}

    async def test_the_end_of_an_object_frees_its_locks(self, real_clock: LoopClock) -> None:
        """This includes an end by an exception."""
        async with AsyncExitStack() as stack:
            (other,) = await self._open_several(stack, 1)
            names = await self._names(other, 3)
            for _ in range(2):
                one = self.locks()
                if not hasattr(type(one), "__aexit__"):
                    pytest.skip("it has no end")
                with pytest.raises(LookupError):
                    async with opened(one):
                        assert {*await one.lock(names)} == {*names}
                        raise LookupError
            assert {*await other.lock(names)} == {*names}

    async def test_of_several_calls_at_once_each_lock_goes_to_one(
        self, real_clock: LoopClock
    ) -> None:
        """This holds for any order of the names, without a deadlock."""
        async with AsyncExitStack() as stack:
            several = await self._open_several(stack, 4)
            names = await self._names(several[0], 32)
            for turn in range(6):
                wanted = [names, names[::-1], names[turn:] + names[:turn], names[::2] + names[1::2]]
                taken = await asyncio.gather(
                    *[locks.lock(each) for locks, each in zip(several, wanted, strict=True)]
                )
                assert {name for each in taken for name in each} <= {*names}
                assert len({name for each in taken for name in each}) == sum(map(len, taken))
                kept = await asyncio.gather(*[locks.keep(names) for locks in several])
                assert [sorted(each) for each in kept] == [sorted(each) for each in taken]
                await asyncio.gather(*[locks.unlock(names[::-1]) for locks in several])
            assert {*await several[0].lock(names)} == {*names}

    async def test_a_lost_lock_is_free_and_its_holder_is_told(self, real_clock: LoopClock) -> None:
        """The next `keep` reports the loss. The lock stays with its new holder."""
        async with AsyncExitStack() as stack:
            one, other = await self._open_several(stack, 2)
            names = await self._names(one, 3)
            assert {*await one.lock(names)} == {*names}
            await self.lose(one, names)
            assert {*await other.lock(names)} == {*names}
            assert [*await one.keep(names)] == []
            assert {*await other.keep(names)} == {*names}
            assert [*await one.lock(names)] == []
            await other.unlock(names)
            assert {*await one.lock(names)} == {*names}

    async def test_a_lost_lock_is_not_freed_by_its_earlier_holder(
        self, real_clock: LoopClock
    ) -> None:
        """The earlier holder has not noticed the loss."""
        async with AsyncExitStack() as stack:
            one, other, third = await self._open_several(stack, 3)
            names = await self._names(one, 2)
            assert {*await one.lock(names)} == {*names}
            await self.lose(one, names)
            assert {*await other.lock(names)} == {*names}
            await one.unlock(names)
            assert {*await other.keep(names)} == {*names}
            assert [*await third.lock(names)] == []

    async def test_a_cancelled_lock_is_not_held_for_ever(self, real_clock: LoopClock) -> None:
        """Wherever the call was cancelled, the same object can take the lock and free it."""
        async with AsyncExitStack() as stack:
            one, other = await self._open_several(stack, 2)
            names = await self._names(one, 2)
            for turns in range(8):
                call = asyncio.ensure_future(one.lock(names))
                for _ in range(turns):
                    await real_clock.sleep(0)
                call.cancel()
                await asyncio.wait([call])
                if call.cancelled():
                    assert {*await one.lock(names)} == {*names}
                await one.unlock(names)
                assert {*await other.lock(names)} == {*names}
                await other.unlock(names)

    async def test_members_are_those_that_ask(self, real_clock: LoopClock) -> None:
        """They are counted for each subscription separately, without ended ones."""
        async with AsyncExitStack() as stack:
            one, other = await self._open_several(stack, 2)
            if not (isinstance(one, CountsMembers) and isinstance(other, CountsMembers)):
                pytest.skip("it does not count members")
            name, another = await self.subscription(one), await self.subscription(one)
            assert [await one.members(name), await one.members(name)] == [1, 1]
            assert await other.members(another) == 1
            third = self.locks()
            async with opened(third):
                assert isinstance(third, CountsMembers)
                assert await third.members(name) == 2
                assert await one.members(name) == 2
            assert await one.members(name) == 1
            assert await other.members(name) == 2

    async def test_a_lost_lock_protects_the_position(self, real_clock: LoopClock) -> None:
        """An object with locks and positions moves a slot only if no other object has locked it."""
        async with AsyncExitStack() as stack:
            one, other = await self._open_several(stack, 2)
            if not (isinstance(one, SubscriptionState) and isinstance(other, SubscriptionState)):
                pytest.skip("the positions are kept elsewhere")
            name = await self.subscription(one)
            start, names = Position(0), [slot_lock(name, slot) for slot in range(2)]
            first = {slot: Move(start, Position(1)) for slot in range(2)}
            assert {*await one.lock(names)} == {*names}
            assert [*await other.store(name, first)] == []
            assert {*await one.store(name, first)} == {0, 1}
            await self.lose(one, names)
            assert {*await other.lock(names[:1])} == {names[0]}
            second = {slot: Move(Position(1), Position(2)) for slot in range(2)}
            assert 0 not in {*await one.store(name, second)}
            assert [*await other.store(name, {0: second[0]})] == [0]
            await other.unlock(names[:1])
            third = {0: Move(Position(2), Position(3))}
            assert [*await one.store(name, third)] == []
            assert [*await other.store(name, third)] == [0]

    async def _names(self, locks: SubscriptionLocks, count: int) -> list[str]:
        name = await self.subscription(locks)
        return [slot_lock(name, slot) for slot in range(count)]

    async def _open_several(self, stack: AsyncExitStack, count: int) -> list[SubscriptionLocks]:
        several = [self.locks() for _ in range(count)]
        for locks in several:
            await stack.enter_async_context(opened(locks))
        return several
