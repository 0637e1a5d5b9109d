"""The conformance suite of park stores: the memory store passes it, and it detects faults."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from tests.conformance.park_store_suite import ParkStoreConformance

from sluicegate.batcher import LoopClock
from sluicegate.consumer import MemoryParkStore, ParkedRecord, ParkStore

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence


class TestMemoryParkStore(ParkStoreConformance):
    """consumer/C:N4: parked records are returned in order."""

    def store(self) -> ParkStore:
        return MemoryParkStore()


class SaysDurable(MemoryParkStore):
    is_durable = True


class LastFirst(MemoryParkStore):
    async def first(self, group: str, key: str, most: int) -> Sequence[ParkedRecord]:
        return [*reversed(await super().first(group, key, most))]


class TakesAll(MemoryParkStore):
    async def first(self, group: str, key: str, most: int) -> Sequence[ParkedRecord]:
        return await super().first(group, key, 1_000)


class FirstRemoves(MemoryParkStore):
    async def first(self, group: str, key: str, most: int) -> Sequence[ParkedRecord]:
        found = await super().first(group, key, most)
        await self.remove(group, key, found)
        return found


class ParksAgain(MemoryParkStore):
    async def park(self, group: str, key: str, records: Sequence[ParkedRecord]) -> None:
        await self.remove(group, key, records)
        await super().park(group, key, records)


class RemovesTheKey(MemoryParkStore):
    async def remove(self, group: str, key: str, records: Sequence[ParkedRecord]) -> None:
        await super().remove(group, key, await self.first(group, key, 1_000) if records else [])


class RemovesTheFirst(MemoryParkStore):
    async def remove(self, group: str, key: str, records: Sequence[ParkedRecord]) -> None:
        await super().remove(group, key, await self.first(group, key, len(records)))


class KeepsEmptyKeys(MemoryParkStore):
    async def remove(self, group: str, key: str, records: Sequence[ParkedRecord]) -> None:
        await super().remove(group, key, records)
        self._groups[group].setdefault(key, {})


class OneGroup(MemoryParkStore):
    def __init__(self) -> None:
        super().__init__()
        one: dict[str, dict[str, ParkedRecord]] = {}
        self._groups = defaultdict(lambda: one)


class ForgetsTheCase(MemoryParkStore):
    async def park(self, group: str, key: str, records: Sequence[ParkedRecord]) -> None:
        await super().park(group, key.lower(), records)


class CountsOneEach(MemoryParkStore):
    async def counts(self, group: str) -> Mapping[str, int]:
        return dict.fromkeys(await super().counts(group), 1)


class MakesText(MemoryParkStore):
    async def park(self, group: str, key: str, records: Sequence[ParkedRecord]) -> None:
        await super().park(group, key, [replace(each, value=str(each.value)) for each in records])


class OneHeaderEach(MemoryParkStore):
    async def park(self, group: str, key: str, records: Sequence[ParkedRecord]) -> None:
        once = [replace(each, headers=[*dict(each.headers).items()]) for each in records]
        await super().park(group, key, once)


class CutsKeys(MemoryParkStore):
    async def park(self, group: str, key: str, records: Sequence[ParkedRecord]) -> None:
        await super().park(group, key[:255], records)


class HasALimit(MemoryParkStore):
    async def park(self, group: str, key: str, records: Sequence[ParkedRecord]) -> None:
        await super().park(group, key, records[:500])


class ReadsThenWrites(MemoryParkStore):
    async def park(self, group: str, key: str, records: Sequence[ParkedRecord]) -> None:
        found = {key: dict(queue) for key, queue in self._groups[group].items()}
        await LoopClock().sleep(0)
        self._groups[group] = found
        await super().park(group, key, records)


class CutInHalf(MemoryParkStore):
    """Treats a cut call as a finished one."""

    def __init__(self) -> None:
        super().__init__()
        self.begun: set[str] = set()

    async def park(self, group: str, key: str, records: Sequence[ParkedRecord]) -> None:
        for record in records:
            if f"{key} {record.coordinates}" not in self.begun:
                self.begun.add(f"{key} {record.coordinates}")
                await LoopClock().sleep(0)
                await super().park(group, key, [record])


FAULTS: list[tuple[Callable[[], Any], str]] = [
    (SaysDurable, "a_durable_store_remembers"),
    (LastFirst, "the_first_parked_is_the_first_returned"),
    (TakesAll, "the_first_parked_is_the_first_returned"),
    (FirstRemoves, "the_first_parked_is_the_first_returned"),
    (ParksAgain, "parking_a_record_again_changes_nothing"),
    (RemovesTheKey, "what_is_removed_is_gone_and_the_others_keep_their_order"),
    (RemovesTheFirst, "what_is_removed_is_gone_and_the_others_keep_their_order"),
    (KeepsEmptyKeys, "the_keys_are_those_with_parked_records"),
    (CountsOneEach, "the_keys_are_those_with_parked_records"),
    (OneGroup, "keys_and_groups_are_apart"),
    (ForgetsTheCase, "keys_and_groups_are_apart"),
    (MakesText, "records_return_exactly"),
    (OneHeaderEach, "records_return_exactly"),
    (CutsKeys, "any_key_is_a_key"),
    (HasALimit, "many_records_are_parked_by_one_call"),
    (ReadsThenWrites, "calls_for_several_keys_at_once_lose_nothing"),
    (CutInHalf, "a_cancelled_call_is_repeated_without_harm"),
]


@pytest.mark.parametrize(
    ("fault", "name"), FAULTS, ids=lambda value: getattr(value, "__name__", "")
)
def test_each_fault_of_a_park_store_is_found(fault: Callable[[], Any], name: str) -> None:
    """consumer/C:N4."""

    class Suite(ParkStoreConformance):
        def store(self) -> ParkStore:
            return fault()  # type: ignore[no-any-return]

    with pytest.raises(AssertionError):
        asyncio.run(getattr(Suite(), f"test_{name}")(LoopClock()))


class Shared(ParkStoreConformance):
    """A store that survives as far as the suite can tell."""

    def __init__(self) -> None:
        self.only = SaysDurable()

    def store(self) -> ParkStore:
        return self.only


def test_a_durable_store_passes() -> None:
    asyncio.run(Shared().test_a_durable_store_remembers(LoopClock()))
