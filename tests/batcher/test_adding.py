"""Adding items, and waiting for capacity."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from helpers import Gated, Recording
from sluicegate import AddTimeout, Batcher, ClosedError, Limits
from sluicegate.errors import ItemTooLarge, LedgerFull

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from sluicegate.testing import FakeClock

SMALL = Limits(max_items=2, max_pending_items=4, max_delay=60.0)


async def test_an_add_that_times_out_leaves_no_item(fake_clock: FakeClock) -> None:
    """B-T8, batcher/B8, batcher/B11: the error has the data for the client's response."""
    sink = Gated()
    async with Batcher(sink, limits=SMALL) as batcher:
        await batcher.add_many(range(4))
        with pytest.raises(AddTimeout, match=r"no room within 0\.1 s") as caught:
            await batcher.add("late", timeout=0.1)
        assert caught.value.retry_after == 5.0
        assert fake_clock.now() == pytest.approx(0.1)
        sink.gate.set()
    assert sink.items == [0, 1, 2, 3]
    assert batcher.tally().refused == 1


async def test_a_cancelled_add_leaves_no_item_and_hands_its_room_on(fake_clock: FakeClock) -> None:
    """B-T8, B-T48: cancelled while waiting, and cancelled after the grant but before using it."""
    sink = Gated()
    async with Batcher(sink, limits=SMALL) as batcher:
        await batcher.add_many(range(4))
        waiting = [asyncio.create_task(batcher.add(name)) for name in ("a", "b", "c")]
        await fake_clock.run_until_idle()
        assert batcher.stats().waiting_producers == 3
        waiting[0].cancel()
        sink.gate.set()
        await asyncio.gather(*waiting, return_exceptions=True)
    assert waiting[0].cancelled()
    assert sink.items == [0, 1, 2, 3, "b", "c"]
    assert batcher.tally().accepted == 6


@pytest.mark.parametrize("steps", range(12))
async def test_an_add_cancelled_at_any_moment_is_in_once_or_not_at_all(
    fake_clock: FakeClock, steps: int
) -> None:
    """B-T48: cancelled after every number of loop steps while the add waits, gets capacity, and
    returns.
    """
    sink = Recording(seconds=0.5)
    async with Batcher(sink, limits=SMALL) as batcher:
        await batcher.add_many(range(4))
        adding = asyncio.create_task(batcher.add("x"))
        other = asyncio.create_task(batcher.add("y"))
        await asyncio.sleep(0.5)
        for _ in range(steps):
            await asyncio.sleep(0)
        adding.cancel()
        await asyncio.wait([adding, other])
        assert other.exception() is None
    assert sink.items.count("x") == (0 if adding.cancelled() else 1)
    assert sorted(map(str, sink.items)) == sorted(
        ["0", "1", "2", "3", "y"] + ([] if adding.cancelled() else ["x"])
    )
    assert batcher.report is not None
    batcher.report.verify()


async def test_newcomers_do_not_overtake_waiters(fake_clock: FakeClock) -> None:
    """A large request at the head of the queue is not starved by small ones behind it."""
    sink = Gated()
    async with Batcher(sink, limits=SMALL) as batcher:
        await batcher.add_many(range(4))
        large = asyncio.create_task(batcher.add_many(["l1", "l2", "l3"]))
        await fake_clock.run_until_idle()
        small = asyncio.create_task(batcher.add("s"))
        await fake_clock.run_until_idle()
        assert not batcher.try_add("t")
        sink.gate.set()
        await asyncio.gather(large, small)
    assert sink.items == [0, 1, 2, 3, "l1", "l2", "l3", "s"]


async def test_a_full_ledger_blocks_producers_and_a_free_worker_never_waits(
    fake_clock: FakeClock,
) -> None:
    """B-T13, batcher/B20: two workers take batches at once; adding waits only when the ledger is
    full; shutdown waits for all.
    """
    sink = Recording(seconds=0.1)
    limits = Limits(max_items=10, workers=2, max_pending_items=40, max_delay=60.0)
    async with Batcher(sink, limits=limits) as batcher:
        await batcher.add_many(range(40))
        assert fake_clock.now() == 0.0
        await batcher.add(40)
        assert fake_clock.now() == pytest.approx(0.1)
        assert sink.most_running == 2
    assert sorted(sink.items) == list(range(41))
    assert sink.most_running == 2


async def test_producers_go_on_at_full_speed_after_a_full_ledger(fake_clock: FakeClock) -> None:
    """4b.9: capacity granted to one producer does not make the others wait for the linger."""
    sink = Recording(seconds=0.01)
    async with Batcher(sink, limits=SMALL) as batcher:
        await asyncio.gather(*(batcher.add_from(range(200)) for _ in range(4)))
        await batcher.flush()
        assert fake_clock.now() == pytest.approx(400 * 0.01)
    assert {len(batch) for batch in sink.batches} == {2}


async def test_reject_raises_at_once(fake_clock: FakeClock) -> None:
    """batcher/B10."""
    sink = Gated()
    async with Batcher(sink, limits=SMALL, overflow="reject") as batcher:
        await batcher.add_many(range(4))
        with pytest.raises(LedgerFull, match="4 of 4 items"):
            await batcher.add(4)
        with pytest.raises(LedgerFull):
            await batcher.submit(5)
        sink.gate.set()
    assert sink.items == [0, 1, 2, 3]


async def test_try_add_never_waits(fake_clock: FakeClock) -> None:
    """batcher/B9: false when full and when closed; each refusal is counted."""
    sink = Gated()
    async with Batcher(sink, limits=SMALL) as batcher:
        assert [batcher.try_add(i) for i in range(6)] == [True] * 4 + [False] * 2
        sink.gate.set()
    assert not batcher.try_add(7)
    assert sink.items == [0, 1, 2, 3]
    assert batcher.tally().refused == 3


async def test_add_many_is_all_or_none(fake_clock: FakeClock) -> None:
    """batcher/B53."""
    sink = Gated()
    async with Batcher(sink, limits=SMALL) as batcher:
        await batcher.add_many(range(3))
        with pytest.raises(AddTimeout):
            await batcher.add_many(list("ab"), timeout=1.0)
        with pytest.raises(ItemTooLarge, match="can never fit"):
            await batcher.add_many(range(5))
        sink.gate.set()
    assert sink.items == [0, 1, 2]
    assert batcher.tally().refused == 7


async def test_add_from_takes_async_and_plain_iterables(fake_clock: FakeClock) -> None:
    """As fast as the sink accepts them."""

    async def numbers() -> AsyncIterator[int]:
        for i in range(25):
            yield i

    sink = Recording(seconds=1.0)
    async with Batcher(sink, limits=SMALL) as batcher:
        assert await batcher.add_from(numbers()) == 25
        assert await batcher.add_from(range(25, 30)) == 5
    assert sink.items == list(range(30))


async def test_a_tight_producer_starves_neither_timers_nor_workers(fake_clock: FakeClock) -> None:
    """batcher/4b.9: a producer that never has to wait still lets other tasks run."""
    sink = Recording()
    ran: list[int] = []

    async def neighbour() -> None:
        while True:
            ran.append(1)
            await asyncio.sleep(0)

    async with Batcher(sink, limits=Limits(max_items=10_000, max_pending_items=100_000)) as batcher:
        task = asyncio.create_task(neighbour())
        for i in range(5_000):
            await batcher.add(i)
        assert len(ran) >= 30
        task.cancel()


async def test_try_add_does_not_use_up_the_turns_that_add_owes(fake_clock: FakeClock) -> None:
    """batcher/4b.9: a task that alternates between the two still lets others run."""
    ran: list[int] = []

    async def neighbour() -> None:
        while True:
            ran.append(1)
            await asyncio.sleep(0)

    async with Batcher(
        Recording(), limits=Limits(max_items=500, max_pending_items=100_000)
    ) as batcher:
        task = asyncio.create_task(neighbour())
        for i in range(2_500):
            await batcher.add(i)
            assert batcher.try_add(i)
        assert len(ran) >= 30
        task.cancel()


@pytest.mark.parametrize("way", ["add", "add_many", "submit", "deliver"])
async def test_a_closed_batcher_takes_nothing(fake_clock: FakeClock, way: str) -> None:
    """batcher/B8."""
    batcher = Batcher(Recording())
    with pytest.raises(ClosedError, match="is not open: use `async with batcher:`"):
        await getattr(batcher, way)([1])
    assert not batcher.try_add([1])
    async with batcher:
        pass
    with pytest.raises(ClosedError, match="is closed"):
        await getattr(batcher, way)([1])


async def test_waiting_producers_are_told_of_the_shutdown(fake_clock: FakeClock) -> None:
    """design 4, step 1 of the shutdown: they get `ClosedError`."""
    sink = Recording(seconds=1.0)
    async with Batcher(sink, limits=SMALL) as batcher:
        await batcher.add_many(range(4))
        late = asyncio.create_task(batcher.add("late"))
        await fake_clock.run_until_idle()
        report = await batcher.shutdown()
        with pytest.raises(ClosedError):
            await late
    assert sink.items == [0, 1, 2, 3]
    assert (report.tally.accepted, report.tally.refused) == (4, 1)


@pytest.mark.parametrize("seconds", [0.001, 1.0, 20.0])
async def test_accepting_takes_no_time_whatever_the_sink_takes_until_the_ledger_is_full(
    fake_clock: FakeClock, seconds: float
) -> None:
    """B-T55: one worker and a ledger of 100; the first batch is sent after `max_delay`, and only
    the 101st item waits for a write.
    """
    sink = Recording(seconds=seconds)
    async with Batcher(
        sink,
        limits=Limits(max_items=10, max_delay=0.5, max_pending_items=100),
        shutdown_deadline=1000.0,
    ) as batcher:
        await batcher.add(0)
        await fake_clock.sleep(0.5)
        assert sink.times == [0.5]
        began = fake_clock.now()
        for item in range(1, 100):
            await batcher.add(item)
            assert fake_clock.now() - began <= (0.0 if seconds >= 1.0 else 0.01)
        if seconds >= 1.0:
            await batcher.add(100)
            assert fake_clock.now() == pytest.approx(began + seconds)
    assert sink.items == [*range(101 if seconds >= 1.0 else 100)]
