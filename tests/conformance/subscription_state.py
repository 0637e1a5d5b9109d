"""The conformance suite of the positions of subscriptions.

    class TestMyState(SubscriptionStateConformance):
        def state(self):
            return MyState("...")

1. Each test uses its own subscriptions, so the place need not be empty.
2. The tests run on their own loop in real time, and wait only for the place.

White box: the slots, and how an object is opened.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING
from uuid import uuid4

from sluicegate._core.opening import opened
from sluicegate._core.source import Position
from sluicegate._core.subscriptions import SLOTS, Move, SubscriptionStart

if TYPE_CHECKING:
    from sluicegate._core.clock import LoopClock
    from sluicegate._core.subscriptions import Subscribed, SubscriptionState

_FAR = 2**48 - 1
"""The last position that a log can have."""


class SubscriptionStateConformance(ABC):
    """The suite of every `SubscriptionState`. Name the subclass `Test...`."""

    @abstractmethod
    def state(self) -> SubscriptionState:
        """Return a new object, not yet opened, of the same place in every call."""

    async def test_there_is_nothing_before_the_start(self, real_clock: LoopClock) -> None:
        """A position that is stored too early does not create a subscription."""
        name = _name()
        async with AsyncExitStack() as stack:
            (state,) = await self._open_several(stack, 1)
            assert await state.read(name) is None
            assert [*await state.store(name, {0: Move(Position(0), Position(1))})] == []
            assert await state.read(name) is None
            assert await state.initialize(name, _start(7))
            assert _read(await state.read(name)).positions == dict.fromkeys(
                range(SLOTS), Position(7)
            )

    async def test_one_of_several_starts_at_once_is_stored(self, real_clock: LoopClock) -> None:
        """It is stored as a whole, and every process finds it, also after a concurrent start."""

        async def begin(
            state: SubscriptionState, start: SubscriptionStart
        ) -> tuple[bool, Subscribed]:
            was_first = await state.initialize(name, start)
            return was_first, _read(await state.read(name))

        for _ in range(5):
            name = _name()
            async with AsyncExitStack() as stack:
                states = await self._open_several(stack, 4)
                starts = [_start(100 * number) for number in range(4)]
                begun = await asyncio.gather(
                    *[begin(state, start) for state, start in zip(states, starts, strict=True)]
                )
                were_first = [was_first for was_first, _ in begun]
                assert were_first.count(True) == 1
                first = starts[were_first.index(True)]
                for _, found in begun:
                    _same(found, first)
                for state in states:
                    _same(_read(await state.read(name)), first)

    async def test_a_later_start_changes_nothing(self, real_clock: LoopClock) -> None:
        """Neither the first object nor another one sees a change."""
        name = _name()
        async with AsyncExitStack() as stack:
            one, other = await self._open_several(stack, 2)
            assert await one.initialize(name, _start(7))
            await one.store(name, {3: Move(Position(7), Position(9))})
            before = await one.read(name)
            for state in (one, other):
                assert not await state.initialize(name, _start(0))
                assert await state.read(name) == before

    async def test_a_start_returns_exactly(self, real_clock: LoopClock) -> None:
        """This includes each slot's offset, the earlier offsets after them, and the selection."""
        name = _name()
        start = SubscriptionStart(
            {slot: _FAR - slot for slot in range(SLOTS)},
            frozenset({5, 0, _FAR}),
            selection='{"streams": ["order-*", "\u00fc\'\\"]}',
            point="a test",
        )
        async with AsyncExitStack() as stack:
            (state,) = await self._open_several(stack, 1)
            assert await state.initialize(name, start)
            found = _read(await state.read(name))
            _same(found, start)
            assert not found.is_paused
            assert not found.paused_slots

    async def test_a_store_moves_the_slots_that_it_names(self, real_clock: LoopClock) -> None:
        """Their maps are stored too. Other slots stay, and another object sees the change."""
        name = _name()
        async with AsyncExitStack() as stack:
            one, other = await self._open_several(stack, 2)
            await one.initialize(name, _start(0))
            far = Position(_FAR, "a map, \u00fc'\\\n")
            moves = {0: Move(Position(0), far), 255: Move(Position(0), Position(4))}
            assert {*await one.store(name, moves)} == {0, 255}
            found = _read(await other.read(name)).positions
            assert (found[0], found[255]) == (far, Position(4))
            assert {found[slot] for slot in range(1, 255)} == {Position(0)}
            assert [*await other.store(name, {0: Move(far, Position(_FAR, "other"))})] == [0]
            assert _read(await one.read(name)).positions[0] == Position(_FAR, "other")
            assert [*await one.store(name, {})] == []

    async def test_a_stale_store_changes_nothing(self, real_clock: LoopClock) -> None:
        """A store with an outdated position or map has no effect on that slot; other slots move."""
        name = _name()
        async with AsyncExitStack() as stack:
            one, stale = await self._open_several(stack, 2)
            await one.initialize(name, _start(10))
            moved = Position(20, "map")
            await one.store(name, {1: Move(Position(10), moved)})
            for before in (Position(10), Position(20), Position(20, "other"), Position(30, "map")):
                moves = {1: Move(before, Position(40)), 2: Move(Position(10), Position(11))}
                await one.store(name, {2: Move(Position(11), Position(11))})
                assert 1 not in {*await stale.store(name, moves)}
                assert _read(await one.read(name)).positions[1] == moved
            assert _read(await one.read(name)).positions[2] == Position(11)

    async def test_a_position_never_goes_back(self, real_clock: LoopClock) -> None:
        """This holds even if the store names the current one. The same offset may get another map."""
        name = _name()
        async with AsyncExitStack() as stack:
            (state,) = await self._open_several(stack, 1)
            await state.initialize(name, _start(10))
            for after in (Position(9), Position(0), Position(-1)):
                assert [*await state.store(name, {5: Move(Position(10), after)})] == []
                assert _read(await state.read(name)).positions[5] == Position(10)
            at = Position(10, "map")
            assert [*await state.store(name, {5: Move(Position(10), at)})] == [5]
            assert _read(await state.read(name)).positions[5] == at

    async def test_of_several_stores_at_once_one_counts(self, real_clock: LoopClock) -> None:
        """Several stores move the same slots from the same position; only one has an effect."""
        name = _name()
        async with AsyncExitStack() as stack:
            states = await self._open_several(stack, 4)
            await states[0].initialize(name, _start(0))
            at = {slot: Position(0) for slot in range(8)}
            for turn in range(10):
                moved = await asyncio.gather(
                    *[
                        state.store(
                            name,
                            {
                                slot: Move(at[slot], Position(10 * turn + number + 1))
                                for slot in (at if number % 2 else reversed(at))
                            },
                        )
                        for number, state in enumerate(states)
                    ]
                )
                assert sorted(slot for each in moved for slot in each) == sorted(at)
                for number, each in enumerate(moved):
                    at.update(dict.fromkeys(each, Position(10 * turn + number + 1)))
                found = _read(await states[0].read(name)).positions
                assert {slot: found[slot] for slot in at} == at

    async def test_all_slots_are_moved_by_one_call(self, real_clock: LoopClock) -> None:
        """They are named in any order."""
        name = _name()
        async with AsyncExitStack() as stack:
            (state,) = await self._open_several(stack, 1)
            await state.initialize(name, _start(0))
            moves = {slot: Move(Position(0), Position(slot)) for slot in reversed(range(SLOTS))}
            assert {*await state.store(name, moves)} == {*range(SLOTS)}
            found = _read(await state.read(name)).positions
            assert found == {slot: Position(slot) for slot in range(SLOTS)}

    async def test_what_was_read_stays_as_it_was(self, real_clock: LoopClock) -> None:
        """The returned state is a copy, and so is the stored start."""
        name = _name()
        async with AsyncExitStack() as stack:
            (state,) = await self._open_several(stack, 1)
            offsets = dict.fromkeys(range(SLOTS), 1)
            await state.initialize(name, SubscriptionStart(offsets))
            offsets[0] = 99
            before = _read(await state.read(name))
            copied = dict(before.positions)
            await state.store(name, {0: Move(Position(1), Position(2))})
            assert before.positions == copied == dict.fromkeys(range(SLOTS), Position(1))

    async def test_subscriptions_are_apart(self, real_clock: LoopClock) -> None:
        """This holds for names of all kinds."""
        suffixes = ["", "/1", "'", '"', "\\", "%", "*", " ", "\u00fc\U0001f600", "x" * 500]
        names = [f"{_name()}{suffix}" for suffix in suffixes]
        async with AsyncExitStack() as stack:
            (state,) = await self._open_several(stack, 1)
            for number, name in enumerate(names):
                assert await state.initialize(name, _start(number))
                await state.store(name, {1: Move(Position(number), Position(100 + number))})
            for number, name in enumerate(names):
                found = _read(await state.read(name)).positions
                assert (found[0], found[1]) == (Position(number), Position(100 + number))

    async def test_a_cancelled_store_is_whole_or_nothing_by_slot(
        self, real_clock: LoopClock
    ) -> None:
        """This holds wherever the call was cancelled, and the object stays usable."""
        name = _name()
        async with AsyncExitStack() as stack:
            (state,) = await self._open_several(stack, 1)
            await state.initialize(name, _start(0))
            at = Position(0)
            for turns in range(6):
                after = Position(at.offset + 1, f"cut after {turns}")
                call = asyncio.ensure_future(state.store(name, {9: Move(at, after)}))
                for _ in range(turns):
                    await real_clock.sleep(0)
                call.cancel()
                await asyncio.wait([call])
                found = _read(await state.read(name)).positions[9]
                assert found in {at, after}
                assert [*await state.store(name, {9: Move(found, after)})] == [9]
                at = after

    async def _open_several(self, stack: AsyncExitStack, count: int) -> list[SubscriptionState]:
        states = [self.state() for _ in range(count)]
        for state in states:
            await stack.enter_async_context(opened(state))
        return states


def _name() -> str:
    return f"subscription {uuid4().hex}"


def _start(offset: int) -> SubscriptionStart:
    return SubscriptionStart(dict.fromkeys(range(SLOTS), offset), frozenset({offset + 3}))


def _read(found: Subscribed | None) -> Subscribed:
    assert found is not None, "a subscription that was started does not exist"
    return found


def _same(found: Subscribed, start: SubscriptionStart) -> None:
    assert found.positions == {slot: Position(at) for slot, at in start.offsets.items()}
    assert (found.earlier, found.selection) == (start.earlier, start.selection)
