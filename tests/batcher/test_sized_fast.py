"""The fast path of measured items has the same effects as the slow path.

White box: one path is switched off.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import pytest
from sized_programs import SizedProgram
from tests.seeds import run_by

from sluicegate import Batcher, Limits, Outcome
from sluicegate.batcher.gathering import window
from sluicegate.batcher.gathering.window import NOTHING, NeedsSlowPath, Scale
from sluicegate.errors import ItemTooLarge
from sluicegate.testing import BlockingSink, FakeSink

if TYPE_CHECKING:
    from sluicegate.testing import FakeClock

COUNT, ALL = 25, 80
KEYED: list[dict[str, Any]] = [{}, {"key": lambda item: item % 5}]


def batcher_of(sink: Any, clock: FakeClock, *, size_of: Any = abs, **given: Any) -> Batcher[int]:
    most: dict[str, Any] = {"max_items": 10, "max_pending_items": 1000, "max_pending_bytes": 9999}
    settings = {name: given.pop(name) for name in list(given) if name.startswith("max_")}
    limits = Limits(**{**most, **settings})
    return Batcher(sink, limits=limits, size_of=size_of, clock=clock, **given)


# -- against the slow path -------------------------------------------------------------------------


def log_of(seed: int) -> tuple[list[Any], int]:
    """The complete log of the program with this seed, and the calls of `size_of`."""
    program = SizedProgram(seed)
    try:
        return program.clock.run(program.run()), program.measured
    finally:
        program.clock.close()


def declined(_self: object, _item: object, opened: list[Any]) -> int:
    window_of(opened).receipts.pop(len(opened), None)
    raise NeedsSlowPath(NOTHING)


def window_of(opened: Any) -> Any:
    return opened._scale._window


def compared(first: int, count: int) -> int:
    """Run programs on the fast path and on the slow one; return the number of items on the fast
    path.
    """
    fast = 0
    real = Scale.weigh

    def counted(self: Scale[Any], item: Any, opened: list[Any]) -> int:
        nonlocal fast
        size = real(self, item, opened)
        fast += 1
        return size

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(window, "YIELD_EVERY", 1 << 40)  # the slow path yields more often
        for seed in range(first, first + count):
            with run_by(
                'import sys; sys.path.append("tests/batcher"); import test_sized_fast as '
                f"it; it.compared({seed}, 1)"
            ):
                patch.setattr(Scale, "weigh", counted)
                seen, measured = log_of(seed)
                patch.setattr(Scale, "weigh", declined)
                expected, needed = log_of(seed)
                assert len(seen) == len(expected)
                for one, other in zip(seen, expected, strict=True):
                    assert one == other
                assert measured == needed
    return fast


def test_programs_have_the_same_batches_bytes_counts_and_errors_on_either_path() -> None:
    """See above; `size_of` is also called equally often."""
    assert compared(0, COUNT) > 10 * COUNT


@pytest.mark.long
def test_more_programs_have_the_same_on_either_path() -> None:
    """See above."""
    assert compared(COUNT, ALL - COUNT) > 10 * (ALL - COUNT)


# -- one by one ------------------------------------------------------------------------------------


@pytest.mark.parametrize("given", KEYED)
async def test_bytes_are_exact_between_any_two_items(
    fake_clock: FakeClock, given: dict[str, Any]
) -> None:
    """In the ledger and in the batches, including items in lanes."""
    sink: BlockingSink[int] = BlockingSink()
    added: list[int] = []
    async with batcher_of(sink, fake_clock, max_bytes=40, **given) as batcher:
        ledger = batcher._dispatcher.ledger
        for number in range(100):
            assert batcher.try_add(number % 13)
            added.append(number % 13)
            flying = sum(sum(flight.batch) for flight in batcher._dispatcher.flights)
            assert ledger.bytes == sum(added)
            assert ledger.queued_bytes == sum(added) - flying
            batcher.tally().verify()
        sink.release()
        await batcher.flush()
        assert ledger.bytes == ledger.queued_bytes == 0
    assert all(sum(call.items) <= 40 for call in sink.calls)
    assert sorted(sink.applied) == sorted(added)


@pytest.mark.parametrize("given", KEYED)
async def test_size_of_is_called_once_per_accepted_item(
    fake_clock: FakeClock, given: dict[str, Any]
) -> None:
    """Also for an item that the fast path declines: one that completes a batch, or finds the ledger
    full.
    """
    calls: list[int] = []

    def size_of(item: int) -> int:
        calls.append(item)
        return item

    async with batcher_of(
        FakeSink[int](),
        fake_clock,
        size_of=size_of,
        max_bytes=20,
        max_pending_bytes=60,
        **given,
    ) as batcher:
        for number in range(200):
            await batcher.submit(number % 21)
    assert calls == [number % 21 for number in range(200)]


@pytest.mark.parametrize("given", KEYED)
@pytest.mark.parametrize("size", [True, 2.5, -1, None])
async def test_an_odd_size_is_judged_as_on_the_slow_path(
    fake_clock: FakeClock, given: dict[str, Any], size: Any
) -> None:
    """Anything but an integer of at least 0 is refused; the next item is not affected."""
    sizes: list[Any] = [3, size, 4]
    sink: FakeSink[int] = FakeSink()
    async with batcher_of(sink, fake_clock, size_of=lambda _: sizes.pop(0), **given) as batcher:
        first = await batcher.submit(0)
        if size is True:
            await batcher.submit(1)
        else:
            with pytest.raises((TypeError, ValueError), match="size_of returned"):
                await batcher.submit(1)
        assert batcher.try_add(2)
        assert batcher._dispatcher.ledger.bytes == (8 if size is True else 7)
        await batcher.flush()
        assert first.outcome is Outcome.DELIVERED
    assert sink.applied == ([0, 1, 2] if size is True else [0, 2])


@pytest.mark.parametrize("name", ["key", "size_of"])
async def test_an_item_whose_function_raises_takes_no_bytes(
    fake_clock: FakeClock, name: str
) -> None:
    """Nor does its receipt go to the next item."""

    def of(item: int) -> int:
        if item < 0:
            raise LookupError(f"no {name}")
        return item

    given: dict[str, Any] = {"key": lambda item: item % 5, name: of}
    async with batcher_of(FakeSink[int](), fake_clock, **given) as batcher:
        good = [await batcher.submit(number) for number in range(3)]
        with pytest.raises(LookupError, match=f"no {name}"):
            await batcher.submit(-1)
        with pytest.raises(LookupError, match=f"no {name}"):
            batcher.try_add(-2)
        assert batcher._dispatcher.ledger.bytes == 3
        await batcher.add(3)  # takes the receipt's place
        good.append(await batcher.submit(4))
        await batcher.flush()
        assert [receipt.outcome for receipt in good] == [Outcome.DELIVERED] * 4
        assert batcher.tally().accepted == 5


@pytest.mark.parametrize("inner", ["add", "submit", "fill", "flush"])
async def test_size_of_may_use_its_batcher(fake_clock: FakeClock, inner: str) -> None:
    """The items that it adds come first, with their own receipts."""
    receipts: list[Any] = []

    def add(item: int) -> Any:
        coroutine = batcher.submit(item) if inner == "submit" else batcher.flush()
        try:
            coroutine.send(None)
        except StopIteration as done:
            receipts.append(done.value)
        return coroutine

    def size_of(item: int) -> int:
        if item == 7:
            match inner:
                case "add":
                    assert batcher.try_add(100)
                case "fill":
                    assert all(batcher.try_add(number) for number in range(100, 112))
                case _:
                    waiting.append(add(100))
        return 1

    waiting: list[Any] = []
    sink: FakeSink[int] = FakeSink()
    async with batcher_of(sink, fake_clock, size_of=size_of) as batcher:
        await batcher.add(1)
        outer = await batcher.submit(7)
        assert outer.outcome is None
        await batcher.add(2)
        tally = batcher.tally()
        assert batcher._dispatcher.ledger.bytes == tally.inside == tally.accepted
        await batcher.flush()
        assert outer.outcome is Outcome.DELIVERED
        assert all(receipt.outcome is Outcome.DELIVERED for receipt in receipts)
        for coroutine in waiting:
            coroutine.close()
    inside = {"add": [100], "submit": [100], "fill": [*range(100, 112)], "flush": []}[inner]
    assert sink.applied == [1, *inside, 7, 2]
    assert all(len(call.items) <= 10 for call in sink.calls)


async def test_an_item_that_fills_max_bytes_ends_its_batch(fake_clock: FakeClock) -> None:
    """At once, as on the slow path; an item that exceeds it begins the next batch."""
    sink: FakeSink[int] = FakeSink()
    async with batcher_of(sink, fake_clock, max_bytes=10) as batcher:
        for size in (4, 6, 4, 5, 2, 3, 11, 1):
            await batcher.add(size)
        assert len(batcher._dispatcher.flights) == 1
        assert batcher.stats().sealed_batches == 3
    assert [list(call.items) for call in sink.calls] == [[4, 6], [4, 5], [2, 3], [11], [1]]


async def test_the_ledgers_bytes_bound_the_fast_path(fake_clock: FakeClock) -> None:
    """No other code checks them between two items."""
    sink: BlockingSink[int] = BlockingSink()
    async with batcher_of(sink, fake_clock, max_items=100, max_pending_bytes=50) as batcher:
        assert [batcher.try_add(size) for size in (20, 20, 10, 1, 0)] == [True] * 3 + [False, True]
        with pytest.raises(ItemTooLarge):
            await batcher.add(51)
        assert (batcher.tally().accepted, batcher.tally().refused) == (4, 2)
        sink.release()


@pytest.mark.parametrize(("given", "ceiling"), [({}, 8.5), ({"key": lambda item: item}, 13.0)])
async def test_a_measured_item_costs_a_few_calls(
    fake_clock: FakeClock, given: dict[str, Any], ceiling: float
) -> None:
    """Python function calls, including the share of its batch; the slow path needs about fifty."""
    needed = 0

    def count(_frame: object, event: str, _argument: object) -> None:
        nonlocal needed
        needed += event == "call"

    most: dict[str, Any] = {
        "max_items": 500,
        "max_pending_items": 5000,
        "max_pending_bytes": 1 << 30,
    }
    async with batcher_of(FakeSink[int](), fake_clock, **most, **given) as batcher:
        before = sys.getprofile()
        sys.setprofile(count)
        for item in range(5000):
            await batcher.add(item)
        sys.setprofile(before)
    assert needed / 5000 < ceiling
