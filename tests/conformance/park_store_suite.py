"""The conformance suite of stores of parked records.

    class TestMyParkStore(ParkStoreConformance):
        def store(self):
            return MyParkStore("...")

1. Each test uses its own groups, so the store need not be empty.
2. The tests run on their own loop in real time, and wait only for the store.

White box: the text of a key.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest

from sluicegate._core.opening import opened
from sluicegate._core.order.keys import key_text
from sluicegate._core.park_store import ParkedRecord

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from sluicegate._core.clock import LoopClock
    from sluicegate._core.park_store import ParkStore

MOST = 1_000
_PARKED_AT = datetime(2026, 3, 29, 1, 30, 0, 123_456, UTC)
_EXACT: tuple[object, ...] = (b"\x00\xff\n", b"", "", "a\x00b", "\u00fc\U0001f600 ':\\", None)
"""Keys and values that a store must return unchanged."""


class ParkStoreConformance(ABC):
    """The suite of every store of parked records. Name the subclass `Test...`."""

    @abstractmethod
    def store(self) -> ParkStore:
        """Return a new store, not yet opened, of the same place in every call."""

    @asynccontextmanager
    async def open_store(self) -> AsyncIterator[ParkStore]:
        """Open a store for the duration of the context."""
        store = self.store()
        async with opened(store):
            yield store

    async def test_the_first_parked_is_the_first_returned(self, real_clock: LoopClock) -> None:
        """This holds across several calls, with partitions and offsets in any order."""
        group = _group()
        records = _records(4, topic="b") + _records(3, topic="a") + _records(2, partition=1)
        async with self.open_store() as store:
            for part in (records[:5], [], records[5:]):
                await store.park(group, "k", part)
            assert [*await store.first(group, "k", MOST)] == records
            assert [*await store.first(group, "k", 6)] == records[:6]
            assert [*await store.first(group, "k", MOST)] == records, "`first` has removed records"

    async def test_parking_a_record_again_changes_nothing(self, real_clock: LoopClock) -> None:
        """A call may be repeated after a crash, with other details and together with new records."""
        group = _group()
        records = _records(5)
        again = [replace(record, reason="again", attempts=9) for record in records[:4]]
        async with self.open_store() as store:
            await store.park(group, "k", records[:3])
            await store.park(group, "k", [again[1], again[3], again[0], again[3]])
            await store.park(group, "k", records)
            assert [*await store.first(group, "k", MOST)] == [*records[:3], again[3], records[4]]

    async def test_what_is_removed_is_gone_and_the_others_keep_their_order(
        self, real_clock: LoopClock
    ) -> None:
        """Removing a record that is not parked has no effect."""
        group = _group()
        records = _records(6)
        async with self.open_store() as store:
            await store.remove(group, "k", records)
            await store.park(group, "k", records[:5])
            await store.remove(group, "k", [])
            await store.remove(group, "other", records)
            left = [records[1], records[2], records[4]]
            for _ in range(2):
                await store.remove(group, "k", [records[3], records[0], records[5]])
                assert [*await store.first(group, "k", MOST)] == left
            await store.park(group, "k", [records[0]])
            assert [*await store.first(group, "k", MOST)] == [*left, records[0]]

    async def test_the_keys_are_those_with_parked_records(self, real_clock: LoopClock) -> None:
        """They are returned with their counts, without keys that are empty again."""
        group = _group()
        records = _records(3)
        async with self.open_store() as store:
            assert await store.keys(group) == frozenset()
            await store.park(group, "empty", [])
            await store.park(group, "a", records[:2])
            await store.park(group, "b", records[2:])
            assert await store.keys(group) == {"a", "b"}
            assert dict(await store.counts(group)) == {"a": 2, "b": 1}
            await store.remove(group, "b", records[2:])
            await store.remove(group, "a", records[:1])
            assert await store.keys(group) == {"a"}
            assert dict(await store.counts(group)) == {"a": 1}

    async def test_keys_and_groups_are_apart(self, real_clock: LoopClock) -> None:
        """Each key of each group is a separate queue, even for the same records."""
        groups = [_group(), _group()]
        records = _records(2)
        async with self.open_store() as store:
            for group in groups:
                await store.park(group, "k", records)
            await store.park(groups[0], "K", records[1:])
            await store.remove(groups[0], "k", records)
            assert await store.keys(groups[0]) == {"K"}
            assert [*await store.first(groups[0], "K", MOST)] == records[1:]
            assert [*await store.first(groups[0], "k", MOST)] == []
            assert [*await store.first(groups[1], "k", MOST)] == records

    async def test_records_return_exactly(self, real_clock: LoopClock) -> None:
        """This includes bytes, texts, missing values, headers with equal names and the largest
        numbers.
        """
        group = _group()
        headers = [("h", b"\xff\x00"), ("h", b""), ("", b"x"), ("\u00fc", b"y")]
        records = [
            replace(record, key=value, value=_EXACT[-1 - index], headers=headers)
            for index, (record, value) in enumerate(zip(_records(6), _EXACT, strict=True))
        ]
        large = 2**63 - 1
        records[0] = replace(records[0], offset=large, timestamp=large, partition=2**31 - 1)
        records[1] = replace(
            records[1],
            is_poison=True,
            reason="r" * 5_000,
            error_type="E",
            message="\u2028",
            attempts=3,
        )
        async with self.open_store() as store:
            await store.park(group, "k", records)
            for found, record in zip(await store.first(group, "k", MOST), records, strict=True):
                assert (
                    replace(found, headers=[(name, each) for name, each in found.headers]) == record
                )
                assert type(found.key) is type(record.key)
                assert type(found.value) is type(record.value)

    async def test_any_key_is_a_key(self, real_clock: LoopClock) -> None:
        """The texts of all kinds of order keys are accepted."""
        group = _group()
        keys = [
            key_text(key) for key in (b"\x00\xff", "", None, 1, "1", "a'b\"", "\u00fc", "x" * 500)
        ]
        keys += [f":{'x' * 3_000}", "%", "*", "a/b"]
        async with self.open_store() as store:
            for record, key in zip(_records(len(keys)), keys, strict=True):
                await store.park(group, key, [record])
            assert await store.keys(group) == {*keys}
            for record, key in zip(_records(len(keys)), keys, strict=True):
                assert [*await store.first(group, key, MOST)] == [record]

    async def test_calls_for_several_keys_at_once_lose_nothing(self, real_clock: LoopClock) -> None:
        """The calls of each key are sequential; those of several keys are concurrent."""
        group = _group()
        async with self.open_store() as store:

            async def follow(key: str) -> None:
                for record in _records(10):
                    await store.park(group, key, [record])
                await store.remove(group, key, _records(10)[:5])

            await asyncio.gather(*[follow(f"key {number}") for number in range(8)])
            for number in range(8):
                assert [*await store.first(group, f"key {number}", MOST)] == _records(10)[5:]

    async def test_many_records_are_parked_by_one_call(self, real_clock: LoopClock) -> None:
        """The records that waited in memory when the first record of a key became poison are
        parked together.
        """
        group = _group()
        async with self.open_store() as store:
            await store.park(group, "k", _records(MOST))
            assert [*await store.first(group, "k", MOST)] == _records(MOST)
            await store.remove(group, "k", _records(MOST))
            assert not await store.keys(group)

    async def test_a_cancelled_call_is_repeated_without_harm(self, real_clock: LoopClock) -> None:
        """Wherever it was cancelled, the records are parked once and in order afterwards."""
        group = _group()
        async with self.open_store() as store:
            for turns in range(4):
                records = _records(3, topic=f"cut after {turns}")
                call = asyncio.ensure_future(store.park(group, f"{turns}", records))
                for _ in range(turns):
                    await real_clock.sleep(0)
                call.cancel()
                await asyncio.wait([call])
                await store.park(group, f"{turns}", records)
                assert [*await store.first(group, f"{turns}", MOST)] == records

    async def test_a_durable_store_remembers(self, real_clock: LoopClock) -> None:
        """A second store for the same location returns the records of the first one."""
        group = _group()
        if not self.store().is_durable:
            pytest.skip("it does not claim to be durable")
        async with self.open_store() as store:
            await store.park(group, "k", _records(3))
            await store.remove(group, "k", _records(1))
        async with self.open_store() as store:
            assert [*await store.first(group, "k", MOST)] == _records(3)[1:]
            await store.park(group, "k", _records(5))
            assert [*await store.first(group, "k", MOST)] == [
                *_records(5)[1:3],
                *_records(1),
                *_records(5)[3:],
            ]


def _group() -> str:
    return f"group {uuid4().hex}"


def _records(count: int, *, topic: str = "topic", partition: int = 0) -> list[ParkedRecord]:
    """Make records, equal ones for equal arguments."""
    return [
        ParkedRecord(
            topic=topic,
            partition=partition,
            offset=offset,
            key=b"key",
            value=b"value %d" % offset,
            headers=[],
            reason="a test parks it",
            parked_at=_PARKED_AT,
        )
        for offset in range(count)
    ]
