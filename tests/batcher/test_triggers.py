"""When a batch is sealed, and why."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from helpers import Gated, Recording
from sluicegate import Batch, Batcher, ConfigError, DeadLetter, Limits, Retry, Timeout, stack
from sluicegate.errors import ItemTooLarge
from sluicegate.sinks import MemorySink

if TYPE_CHECKING:
    from sluicegate.testing import FakeClock


async def test_twice_max_items_makes_two_full_batches(fake_clock: FakeClock) -> None:
    """batcher/4a.1, B-T1, batcher/B1, batcher/B7."""
    sink = Recording()
    async with Batcher(sink, limits=Limits(max_items=10)) as batcher:
        for i in range(20):
            await batcher.add(i)
        await batcher.flush()
        assert sink.batches == [tuple(range(10)), tuple(range(10, 20))]
        assert sink.reasons == ["size", "size"]


async def test_a_batch_is_written_exactly_when_its_first_item_is_max_delay_old(
    fake_clock: FakeClock,
) -> None:
    """batcher/4a.1, B-T2, batcher/B2: not earlier; an empty batcher writes nothing."""
    sink = Recording()
    async with Batcher(sink, limits=Limits(max_delay=1.0)) as batcher:
        await batcher.add("a")
        await fake_clock.advance(0.999)
        assert sink.batches == []
        await fake_clock.advance(0.001)
        assert sink.batches == [("a",)]
        assert sink.reasons == ["time"]
        await fake_clock.advance(10.0)
        assert len(sink.batches) == 1


async def test_each_batch_counts_from_its_own_first_item(fake_clock: FakeClock) -> None:
    """B-T3: an item added at 0.9 of an idle period is not written at the period's end."""
    sink = Recording()
    async with Batcher(sink, limits=Limits(max_delay=1.0)) as batcher:
        await fake_clock.advance(0.9)
        await batcher.add("a")
        await fake_clock.advance(0.1)
        assert sink.batches == []
        await fake_clock.advance(0.9)
        assert sink.times == [pytest.approx(1.9)]
        await batcher.add("b")
        await fake_clock.advance(0.5)
        await batcher.add("c")
        await fake_clock.advance(0.5)
        assert sink.times == [pytest.approx(1.9), pytest.approx(2.9)]
        assert sink.batches == [("a",), ("b", "c")]


async def test_a_drip_never_waits_longer_than_max_delay(fake_clock: FakeClock) -> None:
    """batcher/4a.2: one item every 0.3 s with a limit of 0.5 s."""
    added: dict[int, float] = {}
    waits: list[float] = []

    async def write(batch: Batch[int]) -> None:
        waits.extend(fake_clock.now() - added[item] for item in batch)

    async with Batcher(write, limits=Limits(max_delay=0.5)) as batcher:
        for i in range(30):
            added[i] = fake_clock.now()
            await batcher.add(i)
            await fake_clock.advance(0.3)
    assert len(waits) == 30
    assert max(waits) <= 0.5 + 1e-9


async def test_shutdown_writes_the_open_batch_at_once_with_its_own_reason(
    fake_clock: FakeClock,
) -> None:
    """batcher/4a.1, B-T4, batcher/B3, batcher/4b.3: without waiting for the linger."""
    sink = Recording()
    async with Batcher(sink, limits=Limits(max_items=10, max_delay=100.0)) as batcher:
        for i in range(9):
            await batcher.add(i)
    assert sink.batches == [tuple(range(9))]
    assert sink.reasons == ["shutdown"]
    assert sink.times == [0.0]


async def test_shutdown_of_an_empty_batcher_writes_nothing(fake_clock: FakeClock) -> None:
    """B-T4."""
    sink = Recording()
    async with Batcher(sink) as batcher:
        pass
    assert sink.batches == []
    assert batcher.report is not None
    assert batcher.report.complete


async def test_batches_that_a_sink_keeps_never_change(fake_clock: FakeClock) -> None:
    """I3, B-T10, batcher/B17."""
    kept: list[Batch[int]] = []

    async def write(batch: Batch[int]) -> None:
        kept.append(batch)

    async with Batcher(write, limits=Limits(max_items=3)) as batcher:
        await batcher.add_many(range(10))
    assert [list(batch) for batch in kept] == [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9]]


async def test_a_batch_is_sealed_before_the_item_that_would_take_it_over_max_bytes(
    fake_clock: FakeClock,
) -> None:
    """batcher/B6, batcher/4a.1."""
    sink = Recording()
    async with Batcher(sink, limits=Limits(max_bytes=10, max_delay=9.0)) as batcher:
        for item in (b"1234", b"5678", b"abc", b"0123456", b"x"):
            await batcher.add(item)
    assert sink.batches == [(b"1234", b"5678"), (b"abc", b"0123456"), (b"x",)]
    assert sink.reasons == ["bytes", "bytes", "shutdown"]


async def test_an_item_over_max_bytes_goes_alone_and_hurts_no_neighbour(
    fake_clock: FakeClock,
) -> None:
    """batcher/4a.3."""
    sink = Recording()
    async with Batcher(sink, limits=Limits(max_bytes=10), size_of=len) as batcher:
        await batcher.add_many(["aa", "b" * 50, "cc"])
    assert sink.batches == [("aa",), ("b" * 50,), ("cc",)]


async def test_an_item_over_max_bytes_can_be_refused_at_add(fake_clock: FakeClock) -> None:
    """batcher/4a.3."""
    sink = Recording()
    async with Batcher(sink, limits=Limits(max_bytes=10), oversize="reject") as batcher:
        with pytest.raises(ItemTooLarge, match="50 bytes is larger than max_bytes=10"):
            await batcher.add(b"b" * 50)
        await batcher.add(b"cc")
    assert sink.items == [b"cc"]
    assert batcher.report is not None
    assert (batcher.report.tally.accepted, batcher.report.tally.refused) == (1, 1)


async def test_an_item_over_max_bytes_can_go_to_the_dead_letters(fake_clock: FakeClock) -> None:
    """batcher/4a.3: untried, with its reason, and its neighbours are delivered."""
    sink, letters = Recording(), MemorySink[Any]()
    full = stack(sink, Retry(), DeadLetter(letters), Timeout(5.0))
    async with Batcher(full, limits=Limits(max_bytes=10), oversize="dead_letter") as batcher:
        receipts = [await batcher.submit(item) for item in (b"aa", b"b" * 50, b"cc")]
        await batcher.flush()
        assert [receipt.outcome and receipt.outcome.value for receipt in receipts] == [
            "delivered",
            "dead_lettered",
            "delivered",
        ]
    assert sink.items == [b"aa", b"cc"]
    assert [(record.item, record.message) for record in letters.items] == [
        (b"b" * 50, "an item of 50 bytes is larger than max_bytes")
    ]
    with pytest.raises(ConfigError, match="oversize='dead_letter': needs a DeadLetter"):
        Batcher(sink, limits=Limits(max_bytes=10), oversize="dead_letter")


async def test_a_due_batch_goes_on_filling_while_every_worker_is_busy(
    fake_clock: FakeClock,
) -> None:
    """batcher/B-T13: it is sealed when it is full or when a worker is free, whichever comes
    first.
    """
    sink = Recording(seconds=10.0)
    async with Batcher(sink, limits=Limits(max_items=100, max_delay=1.0)) as batcher:
        await batcher.add(0)
        await fake_clock.advance(1.0)
        for i in range(1, 50):
            await batcher.add(i)
        await fake_clock.advance(5.0)
        assert batcher.stats().sealed_batches == 0
        for i in range(50, 60):
            await batcher.add(i)
        await fake_clock.advance(20.0)
    assert [len(batch) for batch in sink.batches] == [1, 59]


async def test_flush_is_a_fence_around_what_was_accepted_before_it(fake_clock: FakeClock) -> None:
    """batcher/4a.1, B-T11, batcher/B4, batcher/4b.4: the linger is skipped, later items are not
    included, and the batcher stays open.
    """
    sink = Recording(seconds=1.0)
    async with Batcher(sink, limits=Limits(max_delay=50.0)) as batcher:
        await batcher.add_many(list("ab"))
        report = await batcher.flush()
        assert report
        assert sink.items == ["a", "b"]
        assert {outcome.value: count for outcome, count in report.outcomes.items()} == {
            "delivered": 2
        }
        assert fake_clock.now() == 1.0
        await batcher.add("c")
        assert batcher.tally().queued == 1


async def test_concurrent_flushes_end_with_the_writes_of_their_own_items(
    fake_clock: FakeClock,
) -> None:
    """batcher/B55: each waits for its items in flight, but for no later ones."""
    sink = Recording(seconds=1.0)
    async with Batcher(sink, limits=Limits(max_items=1, max_delay=50.0)) as batcher:
        ended: list[float] = []

        async def flush() -> None:
            assert await batcher.flush()
            ended.append(fake_clock.now())

        async with asyncio.TaskGroup() as tasks:
            for item in "abc":
                await batcher.add(item)
                tasks.create_task(flush())
                await asyncio.sleep(0)
    assert ended == [1.0, 2.0, 3.0]


async def test_an_empty_flush_writes_nothing_and_a_late_one_returns(fake_clock: FakeClock) -> None:
    """B-T11."""
    sink = Recording()
    async with Batcher(sink) as batcher:
        assert await batcher.flush()
    assert sink.batches == []
    assert await batcher.flush()


async def test_flush_honours_its_timeout_and_says_what_remains(fake_clock: FakeClock) -> None:
    """batcher/4b.4."""
    sink = Gated()
    async with Batcher(sink, limits=Limits(max_items=2)) as batcher:
        await batcher.add_many(range(5))
        report = await batcher.flush(timeout=0.5)
        assert not report
        assert report.remaining == 5
        assert fake_clock.now() == 0.5
        sink.gate.set()
        assert (await batcher.flush()).complete
    assert sink.items == [0, 1, 2, 3, 4]


async def test_a_function_is_a_sink(fake_clock: FakeClock) -> None:
    """A plain one runs in a thread."""
    seen: list[Any] = []

    def write(batch: Batch[int]) -> None:
        seen.extend(batch)

    async with Batcher(write) as batcher:
        await batcher.add_many(range(3))
    assert seen == [0, 1, 2]


async def test_waiting_producers_seal_the_open_batch_early_when_a_worker_is_idle(
    fake_clock: FakeClock,
) -> None:
    """batcher/4a.1: design 4, `pressure`: a batch in backoff fills the ledger, so the linger would
    be useless.
    """

    async def write(batch: Batch[int]) -> None:
        written.append((fake_clock.now(), tuple(batch), batch.reason.value))
        if batch[0] == 0:
            await batch.back_off(fake_clock.now() + 100.0)

    written: list[tuple[float, tuple[int, ...], str]] = []
    limits = Limits(max_items=3, workers=2, max_pending_items=9, max_delay=50.0)
    async with Batcher(write, limits=limits) as batcher:
        await batcher.add_many(range(9))
        await batcher.add_many(range(9, 14))
        await fake_clock.run_until_idle()
        waiting = asyncio.create_task(batcher.add_many(range(20, 25)))
        await fake_clock.run_until_idle()
        assert fake_clock.now() == 0.0
        assert (0.0, (12, 13), "pressure") in written
        await waiting


@pytest.mark.parametrize("workers", [1, 4])
async def test_a_full_ledger_makes_full_batches_not_crumbs(
    fake_clock: FakeClock, workers: int
) -> None:
    """B-T47: with producers always waiting, the median batch has at least nine tenths of
    `max_items`.
    """
    sink = Recording(seconds=0.01)
    limits = Limits(
        max_items=50, workers=workers, max_pending_items=(workers + 1) * 50, max_delay=5.0
    )
    async with Batcher(sink, limits=limits) as batcher:
        await asyncio.gather(*(batcher.add_from(range(1_000)) for _ in range(8)))
    sizes = sorted(len(batch) for batch in sink.batches)
    assert sizes[len(sizes) // 2] >= 45
