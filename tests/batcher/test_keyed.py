"""Order per key: which items enter which batch, and when."""

from __future__ import annotations

import asyncio
import gc
import tracemalloc
from typing import TYPE_CHECKING, Any

import pytest
from gatherers import Keyed
from hypothesis import given, settings
from hypothesis import strategies as st
from keyed_help import Destination, Gate, Item, key_of

import penstock.batcher.gathering.keyed
from penstock import (
    Batcher,
    BlockingBatcher,
    ConfigError,
    FanOut,
    Limits,
    Outcome,
    Retry,
    TransientError,
    WriteResult,
    stack,
)
from penstock.batcher.gathering.eras import Waiting
from penstock.retry import Backoff
from penstock.testing import FakeClock

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from penstock import Batch


def on_virtual_time(main: Callable[[FakeClock], Coroutine[Any, Any, None]]) -> None:
    with FakeClock() as clock:
        clock.run(main(clock))


def items(*spec: str) -> list[Item]:
    """`items("a", "b", "a")` are the first of a, the first of b, and the second of a."""
    return [Item(key, spec[:place].count(key)) for place, key in enumerate(spec)]


def limits(**given: Any) -> Limits:
    most: dict[str, Any] = {"max_items": 3, "max_delay": 1.0, "workers": 2, "flush_timeout": 1000.0}
    return Limits(**{**most, **given})


# -- exclusivity, parallelism ----------------------------------------------------------------------


def test_a_key_is_in_one_batch_at_a_time_and_others_go_beside_it() -> None:
    """batcher/4a.10, consumer/C:Ba3, I5."""
    sink = Gate()

    async def main(clock: FakeClock) -> None:
        async with Batcher(sink, key=key_of, limits=limits(), clock=clock) as batcher:
            await batcher.add_many(items("a", "a", "b", "c", "d", "e", "f", "a"))
            await clock.run_until_idle()
            assert sink.waiting == [tuple(items("a", "b", "c")), tuple(items("d", "e", "f"))]
            sink.open()
            await clock.advance(1.0)
            assert sink.waiting[1:] == [(Item("a", 1),)]
            sink.open(1)
            await clock.run_until_idle()
            sink.open()
            await clock.advance(1.0)
            sink.open()
        assert sink.applied["a"] == [0, 1, 2]
        assert batcher.tally().delivered == 8

    on_virtual_time(main)
    assert not sink.broken


def test_a_sink_that_is_safe_for_prefixes_gets_a_key_several_times_in_a_batch() -> None:
    """G-T6, G-T8, consumer/C:Ba3: twenty items of one key are two batches of ten, the second after
    the first.
    """
    sink = Gate(prefix_safe=True)

    async def main(clock: FakeClock) -> None:
        async with Batcher(sink, key=key_of, limits=limits(max_items=10), clock=clock) as batcher:
            await batcher.add_many([Item("k", number) for number in range(20)])
            await clock.advance(5.0)
            assert [len(batch) for batch in sink.waiting] == [10]
            sink.open()
            await clock.run_until_idle()
            assert sink.waiting == [tuple(Item("k", number) for number in range(10, 20))]
            sink.open()

    on_virtual_time(main)
    assert sink.reasons == ["size", "size"]
    assert not sink.broken


def test_a_hot_key_fills_whole_batches_beside_others() -> None:
    """G-T22, for batches: no batch of a hot key is smaller than it could be."""
    sink = Gate(prefix_safe=True)

    async def main(clock: FakeClock) -> None:
        async with Batcher(
            sink, key=key_of, limits=limits(max_items=10, workers=4), clock=clock
        ) as batcher:
            for number in range(95):
                await batcher.add(Item("hot", number))
            await clock.run_until_idle()
            while sink.waiting:
                assert len(sink.waiting) == 1
                sink.open()
                await clock.advance(1.0)

    on_virtual_time(main)
    assert [len(batch) for batch in sink.batches] == [10] * 9 + [5]


def test_as_many_batches_as_workers_are_on_their_way() -> None:
    """G-T9: no batch is longer than `max_items`."""
    sink = Gate()

    async def main(clock: FakeClock) -> None:
        async with Batcher(
            sink, key=key_of, limits=limits(max_items=5, workers=3), clock=clock
        ) as batcher:
            await batcher.add_many([Item(key, 0) for key in range(40)])
            await clock.run_until_idle()
            while sink.waiting:
                assert len(sink.waiting) <= 3
                sink.open()
                await clock.run_until_idle()

    on_virtual_time(main)
    assert sink.most_running == 3
    assert {len(batch) for batch in sink.batches} == {5}


# -- time and size ---------------------------------------------------------------------------------


def test_an_item_whose_key_is_busy_neither_starts_the_time_nor_fills_a_batch() -> None:
    """consumer/C:Ba5."""
    sink = Gate()

    async def main(clock: FakeClock) -> None:
        async with Batcher(sink, key=key_of, limits=limits(max_items=2), clock=clock) as batcher:
            await batcher.add_many(items("a", "b"))
            await clock.run_until_idle()
            for number in range(1, 4):
                await batcher.add(Item("a", number))
            await clock.advance(10.0)
            assert len(sink.waiting) == 1, "nothing could go"
            await batcher.add(Item("c", 0))
            await clock.advance(0.5)
            assert len(sink.waiting) == 1, "c alone does not fill a batch, and is not due"
            await clock.advance(0.5)
            assert sink.waiting[1:] == [(Item("c", 0),)]
            await clock.run_until_idle()
            while sink.waiting:
                sink.open()
                await clock.advance(1.0)

    on_virtual_time(main)
    assert sink.applied["a"] == [0, 1, 2, 3]


def test_what_has_waited_for_its_key_does_not_linger_again() -> None:
    """batcher/4a.2: the age of a batch is that of its oldest item, from its acceptance."""
    sink = Gate()

    async def main(clock: FakeClock) -> None:
        async with Batcher(sink, key=key_of, limits=limits(), clock=clock) as batcher:
            await batcher.add(Item("a", 0))
            await clock.advance(1.0)
            await batcher.add(Item("a", 1))
            await clock.advance(0.4)
            sink.open()
            await clock.run_until_idle()
            assert not sink.waiting
            await clock.advance(0.5)
            assert not sink.waiting, "0.9 s are not over the limit of 1 s"
            await clock.advance(0.1)
            assert sink.waiting == [(Item("a", 1),)]
            await batcher.add(Item("a", 2))
            await clock.advance(5.0)
            sink.open()
            await clock.run_until_idle()
            assert sink.waiting == [(Item("a", 2),)], "it has waited five seconds for its key"
            sink.open()

    on_virtual_time(main)


def test_bytes_bound_a_keyed_batch() -> None:
    """batcher/B6: items that do not fit wait in order."""
    sink = Gate(prefix_safe=True)

    async def main(clock: FakeClock) -> None:
        given = limits(max_items=100, max_bytes=10)
        async with Batcher(
            sink, key=key_of, limits=given, size_of=lambda item: 4, clock=clock
        ) as batcher:
            await batcher.add_many(items(*"aaaaa", "b", *"aa"))
            await clock.run_until_idle()
            while sink.waiting:
                sink.open()
                await clock.advance(1.0)

    on_virtual_time(main)
    assert all(len(batch) <= 2 for batch in sink.batches)
    assert sink.applied["a"] == list(range(7))
    assert not sink.broken


# -- backing off -----------------------------------------------------------------------------------


def test_a_key_that_backs_off_holds_back_only_itself() -> None:
    """batcher/4a.10, consumer/C:O2: also with one worker, and the keys that shared its batch
    continue.
    """

    async def perform(sink: Destination, batch: Batch[Item]) -> WriteResult | None:
        bad = {
            index: TransientError("later")
            for index, item in enumerate(batch)
            if item.key == "a" and len(sink.batches) < 4
        }
        sink.apply(*(item for index, item in enumerate(batch) if index not in bad))
        return WriteResult.failed(batch, bad)

    sink = Destination(perform)

    async def main(clock: FakeClock) -> None:
        patient = stack(sink, Retry(backoff=Backoff(base=100.0, jitter="none")))
        async with Batcher(patient, key=key_of, limits=limits(workers=1), clock=clock) as batcher:
            await batcher.add_many(items("a", "b", "c"))
            await clock.run_until_idle()
            assert batcher.stats().backing_off_batches == 1
            await batcher.add_many([Item("a", 1), Item("b", 1), Item("c", 1)])
            await clock.advance(1.0)
            assert sink.applied == {"b": [0, 1], "c": [0, 1]}
            assert batcher.tally().backing_off == 1
            await batcher.add(Item("b", 2))
            await clock.advance(1.0)
            assert sink.applied["b"] == [0, 1, 2]
            await clock.advance(1000.0)
            assert sink.applied["a"] == [0, 1]

    on_virtual_time(main)
    assert not sink.broken


def test_a_branch_that_nobody_waits_for_keeps_the_order_too() -> None:
    """I4: an item with an outcome may still be in flight to a best-effort branch."""
    slow, fast = Gate(), Destination()

    async def main(clock: FakeClock) -> None:
        async with Batcher(
            FanOut(fast, best_effort=[slow]), key=key_of, limits=limits(), clock=clock
        ) as batcher:
            await batcher.add(Item("a", 0))
            await clock.advance(1.0)
            await batcher.add(Item("a", 1))
            await clock.advance(1.0)
            assert len(slow.waiting) == 1
            slow.open()
            await clock.advance(1.0)
            slow.open()

    on_virtual_time(main)
    assert slow.applied["a"] == fast.applied["a"] == [0, 1]
    assert not slow.broken


def test_what_was_cut_off_keeps_its_key_until_its_write_has_ended() -> None:
    """I5: it may still take effect, so no other item of its key is written meanwhile; other keys
    are.
    """

    async def deaf(sink: Destination, batch: Batch[Item]) -> None:
        if len(sink.batches) == 1:
            until = asyncio.get_running_loop().time() + 50.0
            while (left := until - asyncio.get_running_loop().time()) > 0:
                try:
                    await asyncio.sleep(left)
                except asyncio.CancelledError:
                    continue
        sink.apply(*batch)

    sink = Destination(deaf)

    async def main(clock: FakeClock) -> None:
        async with Batcher(
            sink, key=key_of, limits=limits(flush_timeout=5.0), clock=clock
        ) as batcher:
            receipt = await batcher.submit(Item("a", 0))
            await clock.advance(1.0)
            await batcher.add_many([Item("a", 1), Item("b", 0)])
            await clock.advance(10.0)
            assert receipt.outcome is Outcome.UNKNOWN
            assert sink.applied == {"b": [0]}
            await clock.advance(100.0)
        assert sink.applied["a"] == [0, 1]

    on_virtual_time(main)
    assert not sink.broken


# -- flush, overflow, shutdown ---------------------------------------------------------------------


def test_a_flush_covers_what_waits_behind_its_keys_and_nothing_later() -> None:
    """batcher/4b.4, batcher/B55: generation by generation, without linger; later items linger."""
    sink = Gate()

    async def main(clock: FakeClock) -> None:
        async with Batcher(
            sink, key=key_of, limits=limits(max_items=10, max_delay=60.0), clock=clock
        ) as batcher:
            await batcher.add_many(items("a", "a", "a", "b"))
            flush = asyncio.create_task(batcher.flush())
            await clock.run_until_idle()
            await batcher.add_many([Item("a", 3), Item("b", 1), Item("c", 0)])
            assert sink.waiting == [tuple(items("a", "b"))]
            for number in (1, 2):
                sink.open()
                await clock.run_until_idle()
                assert not flush.done()
                assert sink.waiting == [(Item("a", number),)]
            sink.open()
            await clock.run_until_idle()
            report = await flush
            assert report.complete
            assert report.outcomes == {Outcome.DELIVERED: 4}
            assert not sink.waiting
            await clock.advance(60.0)
            assert sink.waiting == [(Item("c", 0), Item("b", 1), Item("a", 3))]
            sink.open()

    on_virtual_time(main)
    assert sink.reasons == ["manual", "manual", "manual", "time"]


def test_a_flush_that_is_late_tells_how_many_remain() -> None:
    """batcher/4b.4."""
    sink = Gate()

    async def main(clock: FakeClock) -> None:
        async with Batcher(sink, key=key_of, limits=limits(), clock=clock) as batcher:
            await batcher.add_many(items("a", "a", "b"))
            flush = asyncio.create_task(batcher.flush(timeout=1.0))
            await clock.run_until_idle()
            await batcher.add(Item("c", 0))
            await clock.advance(1.0)
            assert (await flush).remaining == 3
            await clock.run_until_idle()
            while sink.waiting:
                sink.open()
                await clock.advance(1.0)

    on_virtual_time(main)


def test_the_oldest_item_that_no_worker_has_taken_is_dropped_wherever_it_waits() -> None:
    """B-T9: in a lane, a sealed batch or the open one; the next item of its key takes its place."""
    sink = Gate()

    async def main(clock: FakeClock) -> None:
        given = limits(max_items=2, workers=1, max_pending_items=5)
        async with Batcher(
            sink, key=key_of, limits=given, overflow="drop_oldest", clock=clock
        ) as batcher:
            await batcher.add_many(items("a", "b"))
            await clock.advance(0.0)
            await batcher.add(Item("a", 1))
            await clock.advance(0.1)
            await batcher.add(Item("c", 0))
            await batcher.add(Item("c", 1))
            dropped = [Item("a", 2), Item("c", 2), Item("d", 0)]
            for item in dropped:
                await clock.advance(0.1)
                await batcher.add(item)
            assert batcher.tally().dropped == 3
            await clock.run_until_idle()
            while sink.waiting:
                sink.open()
                await clock.advance(1.0)

    on_virtual_time(main)
    assert sink.applied == {"a": [0, 2], "b": [0], "c": [2], "d": [0]}
    assert not sink.broken


def test_a_shutdown_writes_what_waits_behind_its_keys() -> None:
    """batcher/B12, batcher/4a.10: a shutdown cancels no accepted item before the deadline."""
    sink = Gate()

    async def main(clock: FakeClock) -> None:
        async with Batcher(sink, key=key_of, limits=limits(), clock=clock) as batcher:
            await batcher.add_many(items("a", "a", "a", "b"))
            closing = asyncio.create_task(batcher.shutdown())
            await clock.run_until_idle()
            await clock.run_until_idle()
            while sink.waiting:
                sink.open()
                await clock.run_until_idle()
            report = await closing
            assert report.complete
            assert report.tally.delivered == 4
            assert report.seconds == 0.0

    on_virtual_time(main)
    assert sink.applied == {"a": [0, 1, 2], "b": [0]}
    assert set(sink.reasons) <= {"size", "shutdown"}


def test_what_comes_after_an_item_that_is_handed_back_is_handed_back_too() -> None:
    """I4: the last attempt of a stopping batcher fails, and no later item of the key overtakes the
    item; other keys continue.
    """

    async def perform(sink: Destination, batch: Batch[Item]) -> WriteResult | None:
        bad = {
            index: TransientError("later")
            for index, item in enumerate(batch)
            if item == Item("a", 0)
        }
        sink.apply(*(item for index, item in enumerate(batch) if index not in bad))
        return WriteResult.failed(batch, bad)

    sink = Destination(perform)

    async def main(clock: FakeClock) -> None:
        patient = stack(sink, Retry(backoff=Backoff(base=100.0, jitter="none")))
        async with Batcher(patient, key=key_of, limits=limits(), clock=clock) as batcher:
            await batcher.add_many(items("a", "b", "c"))
            await clock.advance(1.0)
            await batcher.add_many([Item("a", 1), Item("a", 2), Item("b", 1)])
            report = await batcher.shutdown()
        assert report.unsent == (Item("a", 0), Item("a", 1), Item("a", 2))
        assert sink.applied == {"b": [0, 1], "c": [0]}
        report.verify()

    on_virtual_time(main)


# -- keys ------------------------------------------------------------------------------------------


def test_an_item_whose_key_cannot_be_one_is_refused_alone() -> None:
    """consumer/C:O3: on every path it leaves no trace, and its receipt is not assigned to another
    item.
    """
    sink = Destination()

    async def main(clock: FakeClock) -> None:
        async with Batcher(sink, key=key_of, limits=limits(max_items=100), clock=clock) as batcher:
            await batcher.add(Item("a", 0))
            with pytest.raises(TypeError, match="cannot be a key"):
                await batcher.add(Item([], 0))
            with pytest.raises(TypeError):
                await batcher.submit(Item({}, 0))
            with pytest.raises(TypeError):
                batcher.try_add(Item({}, 0))
            with pytest.raises(TypeError):
                await batcher.add_many([Item("b", 0), Item({}, 0)])
            await batcher.add(Item("c", 0))
            receipt = await batcher.submit(Item("a", 1))
            await clock.advance(0.0)
            assert not receipt.done
            assert batcher.tally().accepted == 3
            await batcher.flush()
            assert receipt.outcome is Outcome.DELIVERED

    on_virtual_time(main)
    assert sink.applied == {"a": [0, 1], "c": [0]}


def test_the_sink_sees_keys_as_they_were_given() -> None:
    """consumer/C:O3: four keys that look alike are four lanes."""
    seen: list[object] = []

    async def write(batch: Batch[object]) -> None:
        seen.extend(batch.keys or ())

    async def main(clock: FakeClock) -> None:
        async with Batcher(write, key=lambda item: item, clock=clock) as batcher:
            await batcher.add_many([1, True, 1.0, (1, True), b"1", None])
            await batcher.flush()
            assert batcher.stats().flushes == {"manual": 1}

    on_virtual_time(main)
    assert seen == [1, True, 1.0, (1, True), b"1", None]
    assert [type(key) for key in seen] == [int, bool, float, tuple, bytes, type(None)]


@pytest.mark.parametrize("kind", [Batcher, BlockingBatcher])
def test_a_key_function_is_looked_at_before_anything_starts(kind: Any) -> None:
    """batcher/B46, G-T17."""

    async def key(item: object) -> object:
        return item

    for bad in ("key", key):
        with pytest.raises(ConfigError, match=r"key=.*must be a function of an item"):
            kind(Destination(), key=bad)


@pytest.mark.parametrize("prefix_safe", [False, True])
def test_what_waits_behind_its_key_takes_room(prefix_safe: bool) -> None:
    """batcher/I1: items of one key fill the ledger like any other items."""
    sink = Gate(prefix_safe=prefix_safe)

    async def main(clock: FakeClock) -> None:
        async with Batcher(
            sink, key=key_of, limits=limits(max_items=5, max_pending_items=40), clock=clock
        ) as batcher:
            await batcher.add_many([Item("k", number) for number in range(5)])
            await clock.advance(5.0)
            number = 5
            while number < 50 and batcher.try_add(Item("k", number)):
                number += 1
            assert (number, batcher.tally().accepted) == (40, 40)
            while sink.waiting:
                sink.open()
                await clock.advance(5.0)

    on_virtual_time(main)
    assert sink.applied["k"] == list(range(40))


def test_receipts_belong_to_their_items_whatever_way_these_take() -> None:
    """B-T35: into the open batch, into a lane, and on the slow path."""

    async def perform(sink: Destination, batch: Batch[Item]) -> WriteResult:
        return WriteResult.from_outcomes(batch, [None] * len(batch), details=dict(enumerate(batch)))

    async def main(clock: FakeClock) -> None:
        async with Batcher(
            Destination(perform), key=key_of, limits=limits(max_items=4), clock=clock
        ) as batcher:
            spec = items(*"abacabadabacabae")
            receipts = [await batcher.submit(item) for item in spec]
            await batcher.flush()
            assert [receipt.detail for receipt in receipts] == spec

    on_virtual_time(main)


def test_threads_add_to_a_keyed_batcher() -> None:
    """batcher/4a.10: `BlockingBatcher` passes the key on, and refuses an invalid one in the adding
    thread.
    """
    sink = Destination()
    with BlockingBatcher(sink, key=key_of, limits=limits()) as batcher:
        for item in items(*"abcabcaab"):
            batcher.add(item)
        with pytest.raises(TypeError, match="cannot be a key"):
            batcher.add(Item([], 0))
        with pytest.raises(TypeError, match="cannot be a key"):
            batcher.try_add(Item([], 0))
        assert batcher.try_add(Item("d", 0))
        receipt = batcher.submit(Item("d", 1))
        batcher.flush()
        assert receipt.outcome is Outcome.DELIVERED
    assert sink.applied == {"a": [0, 1, 2, 3], "b": [0, 1, 2], "c": [0, 1], "d": [0, 1]}
    assert not sink.broken


def _many_keys(count: int) -> None:
    async def nothing(batch: Batch[int]) -> None:
        pass

    async def main(clock: FakeClock) -> None:
        async with Batcher(
            nothing, key=lambda item: item, limits=Limits(workers=4), clock=clock
        ) as batcher:
            for item in range(1000):
                await batcher.add(item)
            await batcher.flush()
            gc.collect()
            before = len(gc.get_objects())
            for item in range(count):
                await batcher.add(item)
            await batcher.flush()
            await clock.run_until_idle()
            gc.collect()
            assert len(gc.get_objects()) <= before + 100  # 10,000 keys would be visible
            gatherer: Any = batcher._dispatcher.gathering.gatherer
            assert not gatherer.active
            assert not gatherer._eras._waiting
            assert not gatherer._eras._reasons
            assert batcher.tally().delivered == count + 1000

    on_virtual_time(main)


def test_keys_that_come_once_leave_nothing_behind() -> None:
    """consumer/C:O6: no lane, no task, no object."""
    _many_keys(10_000)


@pytest.mark.soak
@pytest.mark.timeout(0)
def test_a_million_keys_that_come_once_leave_nothing_behind() -> None:
    """consumer/C:O6."""
    _many_keys(1_000_000)


def _bytes_per_active_key(count: int) -> float:
    """With one item of each key in flight, and one waiting."""

    async def main(clock: FakeClock) -> float:
        is_open = asyncio.Event()

        async def write(batch: Batch[Item]) -> None:
            await is_open.wait()

        room = Limits(max_items=count // 4, workers=4, max_pending_items=2 * count)
        async with Batcher(write, key=key_of, limits=room, clock=clock) as batcher:
            spec = [Item(key, number) for number in range(2) for key in range(count)]
            gc.collect()
            tracemalloc.start()
            before, _ = tracemalloc.get_traced_memory()
            await batcher.add_many(spec)
            await clock.run_until_idle()
            assert batcher.stats().in_flight_batches == 4
            assert batcher.tally().queued == count
            after, _ = tracemalloc.get_traced_memory()
            tracemalloc.stop()
            is_open.set()
        return (after - before) / count

    with FakeClock() as clock:
        return clock.run(main(clock))


def test_an_active_key_is_small() -> None:
    """consumer/C:O6: less than 600 bytes, including everything that the batcher keeps for its two
    items.
    """
    assert _bytes_per_active_key(2_000) < 600


@pytest.mark.soak
def test_each_of_many_active_keys_is_small() -> None:
    """consumer/C:O6."""
    assert _bytes_per_active_key(100_000) < 600


class Looked(Waiting[Any]):
    """Counts how often the entries behind it in its lane are examined."""

    __slots__ = ("_behind",)
    looks = 0

    @property
    def behind(self) -> Looked | None:
        Looked.looks += 1
        return self._behind

    @behind.setter
    def behind(self, entry: Looked | None) -> None:  # pyright: ignore[reportIncompatibleVariableOverride]
        self._behind = entry


@pytest.mark.parametrize("repeats", [False, True])
@pytest.mark.parametrize("count", [100, 5_000])
def test_a_hot_key_has_at_most_three_items_looked_at_for_each(
    count: int, repeats: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """consumer/4.5: in batches of any size, whatever the number of waiting items."""
    monkeypatch.setattr(penstock.batcher.gathering.keyed, "Waiting", Looked)
    Looked.looks = 0
    gatherer = Keyed[Item](key=key_of, max_items=50, repeats=repeats, evicts=False)
    for number in range(count):
        gatherer.offer_one(Item("hot", number), 0, None, 0.0, "hot")
    went: list[Item] = []
    while (batch := gatherer.take(10.0)) is not None:
        went += batch.items
        gatherer.done(batch)
    assert went == [Item("hot", number) for number in range(count)]
    assert 0 < Looked.looks <= 3 * count


@settings(max_examples=60, deadline=None)
@given(keys=st.lists(st.integers(0, 3), max_size=40), max_items=st.integers(1, 5))
def test_one_worker_and_one_key_is_arrival_order(keys: list[int], max_items: int) -> None:
    """B-T14: the keyed gatherer with one key behaves like a single worker."""
    sink = Destination(prefix_safe=True)
    spec = [Item("k", number) for number in range(len(keys))]

    async def main(clock: FakeClock) -> None:
        async with Batcher(
            sink, key=key_of, limits=limits(max_items=max_items, workers=4), clock=clock
        ) as batcher:
            for item, pause in zip(spec, keys, strict=True):
                await clock.sleep(pause / 2)
                await batcher.add(item)

    on_virtual_time(main)
    assert [item for batch in sink.batches for item in batch] == spec
    assert not sink.broken


def test_a_batch_that_has_become_too_large_is_cut_between_keys() -> None:
    """consumer/C:Ba3: the batch size may shrink while a batch waits; items behind the cut wait for
    items of their key before it.
    """
    gatherer = Keyed[Item](key=key_of, max_items=6, sized=True, repeats=True, evicts=False)
    for item in items(*"aabacb"):
        gatherer.offer_one(item, 1, None, 0.0, gatherer.identity(item))
    gatherer.resize(3, 0.0)
    first, second = gatherer.take(0.0), gatherer.take(0.0)
    assert first is not None
    assert second is not None
    assert first.items == items("a", "a", "b")
    assert (second.items, second.keys, second.bytes) == ([Item("c", 0)], ["c"], 1)
    assert gatherer.take(10.0) is None
    assert (gatherer.queued, gatherer.queued_bytes) == (2, 2)
    gatherer.done(first)
    third = gatherer.take(10.0)
    assert third is not None
    assert third.items == [Item("a", 2), Item("b", 1)]
    gatherer.done(second)
    gatherer.done(third)
    assert not gatherer.lanes.active
    assert not gatherer.queued
