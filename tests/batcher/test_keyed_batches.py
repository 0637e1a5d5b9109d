"""Order per key: which items enter which batch, and when."""

from __future__ import annotations

from gatherers import Keyed
from hypothesis import given
from hypothesis import strategies as st
from keyed_help import Destination, Gate, Item, items, key_of, limits, on_virtual_time
from tests.properties import examples

from sluicegate import Batcher
from sluicegate.testing import FakeClock

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


@examples(15, long=200)
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
