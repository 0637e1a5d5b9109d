"""Groups of items with keys: they enter the batches that their items would enter individually.

White box: the gatherer alone, with groups and with single items.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest
from gatherers import Keyed
from tests.seeds import run_by

from sluicegate import Batcher, DeadLetter, Limits, PermanentError, Receipt, stack
from sluicegate.batcher import Reason
from sluicegate.batcher.gathering.pack import AddGroup
from sluicegate.errors import KeyFailedError
from sluicegate.testing import FakeSink, ScriptedSink, fail

if TYPE_CHECKING:
    from sluicegate.batcher.gathering.pack import Sealed
    from sluicegate.testing import FakeClock

Row = tuple[int, int]


def gathered(seed: int, max_bytes: int | None) -> list[Any]:
    """Every batch of a random run, with its receipts and the snapshots in between."""
    rng = random.Random(seed)
    gatherer: Keyed[Row] = Keyed(
        key=lambda row: row[0],
        max_items=rng.choice((1, 2, 3, 10)),
        max_bytes=max_bytes,
        sized=rng.random() < 0.5,
        repeats=rng.random() < 0.5,
        evicts=rng.random() < 0.3,
    )
    keys, log, flying = rng.choice((1, 3, 8, 100)), list[Any](), list["Sealed[Row]"]()
    for now in range(60):
        match rng.choice(("offer", "offer", "take", "land", "seal", "evict")):
            case "offer":
                items = tuple(
                    (rng.randrange(keys), now * 100 + n) for n in range(rng.randint(1, 15))
                )
                receipts = tuple(Receipt() if rng.random() < 0.5 else None for _ in items)
                log.append([repr(receipt) for receipt in receipts])
                sizes = tuple(n % 7 for _, n in items) if gatherer.shape.sized else None
                group = AddGroup(items, sizes, receipts, gatherer.identities(items))
                gatherer.offer(group, float(now))
            case "take" if (taken := gatherer.take(float(now))) is not None:
                flying.append(taken)
                log += (taken.items, taken.keys, taken.reason, taken.oldest_at)
                log += (sorted(taken.receipts), taken.sizes, taken.bytes)
            case "land" if flying:
                gatherer.done(flying.pop(rng.randrange(len(flying))))
            case "seal":
                gatherer.seal(rng.choice((Reason.MANUAL, Reason.PRESSURE)), float(now))
            case "evict" if (evicted := gatherer.evict_oldest()) is not None:
                log.append((evicted.item, evicted.receipt is None))
            case _:
                pass
        log.append(
            (gatherer.snapshot(), gatherer.queued, gatherer.queued_bytes, {*gatherer.active})
        )
    log.append([leftover.item for leftover in gatherer.clear(99.0)])
    return log


def compared(first: int, count: int) -> None:
    for seed in range(first, first + count):
        with run_by(
            'import sys; sys.path.append("tests/batcher"); import test_keyed_groups as it; '
            f"it.compared({seed}, 1)"
        ):
            assert gathered(seed, None) == gathered(seed, 1 << 40)


def test_a_group_makes_the_batches_that_its_items_would_make() -> None:
    """Also with a limit on bytes, where each item is examined individually, and after a landing."""
    compared(0, 120)


@pytest.mark.parametrize("kind", [str, float, tuple])
async def test_keys_of_a_group_are_told_apart_as_single_ones(
    fake_clock: FakeClock, kind: Any
) -> None:
    """Keys of any type, mixed with keys that represent themselves."""

    def key(item: int) -> object:
        return {0: 1, 1: True, 2: 1.0}.get(item % 4, ("1", kind(str(item % 2))))

    sink: FakeSink[int] = FakeSink()
    limits = Limits(max_items=100, max_delay=1.0)
    async with Batcher(sink, key=key, limits=limits, clock=fake_clock) as batcher:
        await batcher.add_many(range(7))
        await batcher.add_many(range(7, 9))
        await batcher.flush()
    assert [call.items for call in sink.calls] == [(0, 1, 2, 3), (4, 5, 6, 7), (8,)]


async def test_a_group_with_a_key_that_is_none_is_refused_as_a_whole(fake_clock: FakeClock) -> None:
    """Also behind items whose keys are good, and if the function raises."""
    sink: FakeSink[int] = FakeSink()
    for bad, error in (
        (lambda item: [item], TypeError),
        (lambda item: 1 // (item - 5), ZeroDivisionError),
    ):

        def key(item: int, bad: Any = bad) -> object:
            return bad(item) if item == 5 else item

        async with Batcher(sink, key=key, clock=fake_clock) as batcher:
            with pytest.raises(error):
                await batcher.add_many(range(7))
            assert batcher.tally().accepted == 0
            await batcher.add_many(range(5))
            assert batcher.tally().accepted == 5


async def test_a_group_with_an_item_of_a_failed_key_is_refused_as_a_whole(
    fake_clock: FakeClock,
) -> None:
    """None of its items is accepted."""
    sink: ScriptedSink[int] = ScriptedSink([fail()])
    async with Batcher(
        sink, key=lambda item: item % 3, on_key_failure="fail", clock=fake_clock
    ) as batcher:
        await batcher.add(0)
        await batcher.flush()
        with pytest.raises(KeyFailedError):
            await batcher.add_many((1, 2, 3))
        assert (batcher.tally().accepted, batcher.tally().refused) == (1, 3)
        await batcher.add_many((1, 2, 4))
        await batcher.flush()
    assert sink.applied == [1, 2, 4]


def test_an_item_joins_the_batch_in_which_its_key_goes_on() -> None:
    """Behind those of its lane, if the sink is safe for prefixes."""
    gatherer: Keyed[Row] = Keyed(key=lambda row: row[0], max_items=5, repeats=True)
    for now in range(3):
        gatherer.offer(AddGroup(((1, now),), None, None, (1,)), float(now))
        if not now:
            gatherer.seal(Reason.PRESSURE, 0.0)
    first = gatherer.take(3.0)
    assert first is not None
    gatherer.done(first)
    gatherer.offer(AddGroup(((1, 3), (2, 4)), None, None, (1, 2)), 4.0)
    second = gatherer.take(9.0)
    assert second is not None
    assert second.items == [(1, 1), (1, 2), (1, 3), (2, 4)]


async def test_a_group_fills_the_lane_of_a_parked_key_up_to_its_bound(
    fake_clock: FakeClock,
) -> None:
    """The excess goes to the dead letters, oldest first."""
    letters: FakeSink[Any] = FakeSink()
    sink: ScriptedSink[Row] = ScriptedSink([fail(PermanentError("no"))])
    async with Batcher(
        stack(sink, DeadLetter(letters)),
        key=lambda row: row[0],
        on_key_failure="park",
        max_parked_items=2,
        clock=fake_clock,
    ) as batcher:
        await batcher.add((1, 0))
        await batcher.flush()
        await batcher.add_many([(1, number) for number in range(1, 6)])
        await fake_clock.run_until_idle()
        assert [letter.item for letter in letters.applied] == [(1, number) for number in range(4)]
        assert batcher.stats().held_items == 2
        assert batcher.unpark(1) == 2
    assert sink.applied == [(1, 4), (1, 5)]
