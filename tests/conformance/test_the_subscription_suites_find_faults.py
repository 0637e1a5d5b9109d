"""The suites detect faults: each of these subscription providers has one, and the suite of
positions or of locks fails.

White box: the type of a start, which no package exports.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from tests.conformance.subscription_locks import SubscriptionLocksConformance
from tests.conformance.subscription_state import SubscriptionStateConformance
from tests.postgres.subscriptions.frozen import MovedClock

from sluicegate.batcher import LoopClock
from sluicegate.consumer import MemorySubscriptions, Subscribed

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from sluicegate._core.subscriptions import SubscriptionStart
    from sluicegate.consumer import Move, SubscriptionLocks


class Faultless(MemorySubscriptions):
    """A provider without a fault."""


class StoresBlindly(Faultless):
    """An upsert that does not check the previous position."""

    async def store(self, name: str, moves: Mapping[int, Move]) -> Collection[int]:
        started = self._place.started.get(name)
        if started is None:
            return ()
        started.positions.update({slot: move.after for slot, move in moves.items()})
        return [*moves]


class GoesBack(Faultless):
    """Checks the previous position only."""

    async def store(self, name: str, moves: Mapping[int, Move]) -> Collection[int]:
        positions = self._place.started[name].positions
        known = {slot: move for slot, move in moves.items() if positions[slot] == move.before}
        positions.update({slot: move.after for slot, move in known.items()})
        return [*known]


class HandsOutItsOwn(Faultless):
    async def read(self, name: str) -> Subscribed | None:
        started = self._place.started.get(name)
        if started is None:
            return None
        start = started.start
        return Subscribed(started.positions, earlier=start.earlier, selection=start.selection)


class LooksThenStarts(Faultless):
    """Suspends in between."""

    async def initialize(self, name: str, start: SubscriptionStart) -> bool:
        if await self.read(name) is not None:
            return False
        await asyncio.sleep(0)
        self._place.started.pop(name, None)
        return await super().initialize(name, start)


class StartsAgain(Faultless):
    async def initialize(self, name: str, start: SubscriptionStart) -> bool:
        self._place.started.pop(name, None)
        return await super().initialize(name, start)


class IsThereTooEarly(Faultless):
    """Inserts slots one by one, so others find a subscription without all its slots."""

    async def initialize(self, name: str, start: SubscriptionStart) -> bool:
        if not await super().initialize(name, start):
            return False
        positions = self._place.started[name].positions
        whole = dict(positions)
        positions.clear()
        for slot, position in whole.items():
            await asyncio.sleep(0)
            positions[slot] = position
        return True


class AlwaysGrants(Faultless):
    async def lock(self, names: Collection[str]) -> Collection[str]:
        await super().lock(names)
        return [*dict.fromkeys(names)]


class FreesAnybodys(Faultless):
    async def unlock(self, names: Collection[str]) -> None:
        for name in names:
            self._place.leases.pop(name, None)


class NeverExpires(Faultless):
    async def lock(self, names: Collection[str]) -> Collection[str]:
        taken = await super().lock(names)
        for name in taken:
            lease = self._place.leases[name]
            self._place.leases[name] = lease._replace(until=float("inf"))
        return taken


class Blocks(Faultless):
    """Waits for locks that are not free."""

    async def lock(self, names: Collection[str]) -> Collection[str]:
        now = self._clock.now()
        if any(self._place.holder(name, now) for name in names):
            await asyncio.Event().wait()
        return await super().lock(names)


class StoresWithoutTheLock(Faultless):
    def _may_move(self, lock: str) -> bool:
        return True


FAULTS: list[tuple[type[Faultless], str]] = [
    (StoresBlindly, "a_stale_store_changes_nothing"),
    (StoresBlindly, "of_several_stores_at_once_one_counts"),
    (StoresBlindly, "a_position_never_goes_back"),
    (GoesBack, "a_position_never_goes_back"),
    (HandsOutItsOwn, "what_was_read_stays_as_it_was"),
    (LooksThenStarts, "one_of_several_starts_at_once_is_stored"),
    (StartsAgain, "a_later_start_changes_nothing"),
    (IsThereTooEarly, "one_of_several_starts_at_once_is_stored"),
    (AlwaysGrants, "a_lock_has_one_holder"),
    (AlwaysGrants, "of_several_calls_at_once_each_lock_goes_to_one"),
    (FreesAnybodys, "only_the_holder_frees_a_lock"),
    (FreesAnybodys, "a_lost_lock_is_not_freed_by_its_earlier_holder"),
    (NeverExpires, "a_lost_lock_is_free_and_its_holder_is_told"),
    (Blocks, "locks_that_are_not_free_are_left_out"),
    (StoresWithoutTheLock, "a_lost_lock_protects_the_position"),
]


def run(kind: type[Faultless], name: str) -> None:
    clock = MovedClock()
    first = kind(clock=clock)

    class OfState(SubscriptionStateConformance):
        def state(self) -> Faultless:
            return kind(shared_with=first, clock=clock)

    class OfLocks(SubscriptionLocksConformance):
        def locks(self) -> Faultless:
            return kind(shared_with=first, clock=clock)

        async def lose(self, locks: SubscriptionLocks, names: Collection[str]) -> None:
            clock.ahead += 31.0

    async def bounded() -> None:
        suite = OfState() if hasattr(OfState, f"test_{name}") else OfLocks()
        test: Any = getattr(suite, f"test_{name}")
        async with asyncio.timeout(0.5 if kind is Blocks else 30.0):
            await test(LoopClock())

    asyncio.run(bounded())


@pytest.mark.parametrize(
    ("fault", "name"), FAULTS, ids=lambda value: getattr(value, "__name__", value)
)
def test_each_fault_is_found(fault: type[Faultless], name: str) -> None:
    """S11, S-T9: a provider that waits for a lock is detected by its time."""
    run(Faultless, name)
    with pytest.raises(TimeoutError if fault is Blocks else AssertionError):
        run(fault, name)
