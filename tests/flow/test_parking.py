"""Parked keys of a pipe: a rejected record and the later records of its key."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from piping import P0, Destination, piped, records

from sluicegate import Limits, PermanentError, Terminate, WriteResult
from sluicegate.consumer import MemoryLog, MemoryParkStore, Poison
from sluicegate.errors import KeyStopped

if TYPE_CHECKING:
    from sluicegate import Batch
    from sluicegate.testing import FakeClock


class DurableStore(MemoryParkStore):
    """A store that outlives the pipes of a test."""

    is_durable = True

    async def offsets(self) -> list[int]:
        """The offsets of the parked records, in order."""
        keys = sorted(await self.keys("billing"))
        return [each.offset for key in keys for each in await self.first("billing", key, 1000)]


class Picky(Destination):
    """Refuses the rows of these offsets while they are in the set."""

    def __init__(self, *offsets: int, prefix_safe: bool = True) -> None:
        super().__init__(prefix_safe=prefix_safe)
        self.bad = set(offsets)

    async def write(self, batch: Batch[Any]) -> WriteResult:
        """Apply the rows that are not refused and have no refused row of their key before them."""
        errors: dict[int, BaseException] = {}
        stopped: set[object] = set()
        for index, row in enumerate(batch):
            if row.offset in self.bad:
                errors[index] = PermanentError("a constraint")
                stopped.add(row.key)
            elif row.key in stopped:
                errors[index] = KeyStopped("behind a refused row")
            else:
                self.applied.append(row)
        return WriteResult.failed(batch, errors)


@pytest.mark.parametrize("prefix_safe", [False, True])
@pytest.mark.parametrize("max_items", [1, 4])
async def test_followers_of_a_rejected_row_are_parked_in_order_and_others_go_on(
    fake_clock: FakeClock, prefix_safe: bool, max_items: int
) -> None:
    """The position passes parked records; nothing of the key is written until `unpark`."""
    log = MemoryLog(records("ab" * 20))
    store, sink = DurableStore(), Picky(2, prefix_safe=prefix_safe)
    pipe = piped(
        log,
        sink,
        fake_clock,
        ends=False,
        name="billing",
        poison=Poison(parked=store),
        limits=Limits(max_items=max_items, max_delay=0.1, workers=2),
        transform=lambda message: message.record,
    )
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(pipe.run())
        await fake_clock.advance(5.0)
        parked = await store.offsets()
        written = [offset for offset in sink.offsets if offset % 2 == 0]
        assert parked[0] == 2
        assert parked == sorted(parked)
        assert sorted(written + parked) == list(range(0, 40, 2))
        assert [offset for offset in sink.offsets if offset % 2] == list(range(1, 40, 2))
        assert log.start(P0).offset == 40
        assert pipe.parked == ("a",)
        for record in records("ab", first=40):
            log.append(record)
        await fake_clock.advance(2.0)
        assert (await store.offsets())[-1] == 40
        sink.bad.clear()
        unparked = await pipe.unpark("a")
        assert unparked.is_done
        log.append(records("a", first=42)[0])
        await fake_clock.advance(2.0)
        mine = [offset for offset in sink.offsets if offset % 2 == 0]
        assert mine == list(range(0, 43, 2))
        assert await store.offsets() == []
        assert log.start(P0).offset == 43
        pipe.stop()


async def test_a_later_owner_reads_the_parked_keys_back_before_it_fetches(
    fake_clock: FakeClock,
) -> None:
    log = MemoryLog(records("aab"))
    store, sink = DurableStore(), Picky(0)
    first = piped(log, sink, fake_clock, name="billing", poison=Poison(parked=store))
    assert (await first.run()).source.counts.parked == 2
    for record in records("ab", first=3):
        log.append(record)
    sink.bad.clear()
    second = piped(log, sink, fake_clock, name="billing", poison=Poison(parked=store))
    await second.run()
    assert sink.offsets == [2, 4]
    assert await store.offsets() == [0, 1, 3]
    assert log.positions[P0].offset == 5


async def test_a_transform_parks_a_record_and_what_follows_it(fake_clock: FakeClock) -> None:
    log = MemoryLog(records("aaaab"))

    def decode(message: Any) -> Any:
        return Terminate("no") if message.offset == 1 else message.record

    store, sink = DurableStore(), Destination()
    report = await piped(
        log, sink, fake_clock, name="billing", poison=Poison(parked=store), transform=decode
    ).run()
    assert sink.offsets == [0, 4]
    assert await store.offsets() == [1, 2, 3]
    assert report.source.counts.parked == 3


async def test_a_record_that_is_rejected_again_stays_parked(fake_clock: FakeClock) -> None:
    log = MemoryLog(records("aa"))
    store, sink = DurableStore(), Picky(0)
    pipe = piped(log, sink, fake_clock, ends=False, name="billing", poison=Poison(parked=store))
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(pipe.run())
        await fake_clock.advance(2.0)
        unparked = await pipe.unpark("a")
        assert not unparked.is_done
        assert isinstance(unparked.error, PermanentError)
        assert await store.offsets() == [0, 1]
        pipe.stop()


async def test_a_record_without_rows_is_parked_behind_earlier_ones_of_its_key(
    fake_clock: FakeClock,
) -> None:
    """The earlier record is still in the batcher when the transform gives up the later one."""
    log = MemoryLog(records("aab"))

    def decode(message: Any) -> Any:
        return Terminate("no") if message.offset == 1 else message.record

    store, sink = DurableStore(), Picky(0)
    await piped(
        log, sink, fake_clock, name="billing", poison=Poison(parked=store), transform=decode
    ).run()
    assert await store.offsets() == [0, 1]
    assert sink.offsets == [2]
    assert log.positions[P0].offset == 3


async def test_a_record_that_is_to_be_parked_leaves_when_its_claim_ends(
    fake_clock: FakeClock,
) -> None:
    log, store, sink = MemoryLog(records("aab")), DurableStore(), Destination()

    async def hang(batch: Batch[Any]) -> None:
        await fake_clock.sleep(20.0)

    def decode(message: Any) -> Any:
        return Terminate("no") if message.offset == 1 else message.record

    sink.before = hang
    pipe = piped(
        log,
        sink,
        fake_clock,
        ends=False,
        name="billing",
        poison=Poison(parked=store),
        transform=decode,
        drain=2.0,
    )
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(pipe.run())
        await fake_clock.advance(5.0)
        assert await store.offsets() == []
        pipe.stop()
    assert log.start(P0).offset == 0
    assert await store.offsets() == []
