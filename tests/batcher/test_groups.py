"""Items that are added together: batches, errors and keys per item, and one end for all of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import tenacity
from keyed_help import Destination, Gate, Item, key_of

from sluicegate import (
    AddTimeout,
    Batcher,
    ClosedError,
    DeadLetter,
    ItemFailed,
    Limits,
    Outcome,
    PermanentError,
    Retry,
    TransientError,
    WriteResult,
    gather,
    stack,
)
from sluicegate.errors import ResultMismatch
from sluicegate.sinks import Isolate
from sluicegate.testing import BlockingSink, FakeSink

if TYPE_CHECKING:
    from collections.abc import Callable

    from sluicegate import Batch, Receipt
    from sluicegate.testing import FakeClock


def some(keys: str, number: int = 0) -> list[Item]:
    return [Item(key, number) for key in keys]


async def all_of(batcher: Batcher[Any], items: list[Item]) -> list[Receipt]:
    return [await batcher.submit(item) for item in items]


def limits(**given: Any) -> Limits:
    most: dict[str, Any] = {"max_items": 5, "max_delay": 1.0, "workers": 2}
    return Limits(**{**most, **given})


keyed = pytest.mark.parametrize(
    "options",
    [{}, {"key": key_of}, {"key": key_of, "tenant": key_of}],
    ids=["plain", "keys", "both"],
)


@keyed
async def test_nothing_handed_in_is_no_batch_and_waits_for_nobody(
    fake_clock: FakeClock, options: Any
) -> None:
    """G-T7, for batches: the sink is not called for an empty group, even behind other items and
    with a full ledger.
    """
    sink: BlockingSink[Item] = BlockingSink()
    batcher = Batcher(
        sink, limits=limits(workers=1, max_pending_items=10), clock=fake_clock, **options
    )
    async with batcher:
        await batcher.add_many([])
        await fake_clock.advance(5.0)
        assert sink.calls == []
        await batcher.add_many([Item("k", number) for number in range(10)])
        with pytest.raises(AddTimeout):
            await batcher.add(Item("k", 10), timeout=0)
        await batcher.add_many([])
        assert batcher.tally().accepted == 10
        sink.release()
    assert [item.number for call in sink.calls for item in call.items] == list(range(10))


@keyed
async def test_a_sink_that_raises_fails_every_item_and_the_batcher_goes_on(
    fake_clock: FakeClock, options: Any
) -> None:
    """G-T10, B-T31: each receipt has the error, and the next items of the same keys are written."""
    error = PermanentError("nothing of it")

    async def write(batch: Batch[Item]) -> None:
        if any(item.number == 0 for item in batch):
            raise error

    async with Batcher(write, limits=limits(), clock=fake_clock, **options) as batcher:
        receipts = await all_of(batcher, some("abcde"))
        await fake_clock.advance(2.0)
        for receipt in receipts:
            with pytest.raises(ItemFailed) as failed:
                await receipt
            assert failed.value.outcome is Outcome.REJECTED
            assert failed.value.__cause__ is error
        later = await all_of(batcher, some("abcde", 1))
        await fake_clock.advance(2.0)
        assert [receipt.outcome for receipt in later] == [Outcome.DELIVERED] * 5


@keyed
async def test_each_item_has_the_error_that_the_sink_gave_it(
    fake_clock: FakeClock, options: Any
) -> None:
    """G-T10: those without one are delivered."""
    errors = {key: PermanentError(f"{key} is bad") for key in "bd"}

    async def write(batch: Batch[Item]) -> WriteResult:
        return WriteResult.failed(
            batch,
            {index: errors[item.key] for index, item in enumerate(batch) if item.key in errors},
        )

    async with Batcher(write, limits=limits(), clock=fake_clock, **options) as batcher:
        receipts = dict(zip("abcde", await all_of(batcher, some("abcde")), strict=True))
        await fake_clock.advance(2.0)
        for key, receipt in receipts.items():
            if key in errors:
                with pytest.raises(ItemFailed) as failed:
                    await receipt
                assert failed.value.__cause__ is errors[key]
            else:
                assert await receipt is Outcome.DELIVERED


async def test_who_waits_for_a_group_is_told_once_all_of_it_has_ended(
    fake_clock: FakeClock,
) -> None:
    """G-T11: five keys, one of which is retried, under its own key and before later items of that
    key.
    """
    tried: list[tuple[list[object], float]] = []

    async def write(batch: Batch[Item]) -> WriteResult | None:
        tried.append((list(batch.keys or ()), fake_clock.now()))
        if len(tried) == 1:
            return WriteResult.failed(batch, {2: TransientError("not now")})
        return None

    began = fake_clock.now()
    sink = stack(write, Retry(attempts=3, backoff=tenacity.wait_fixed(10.0)))
    async with Batcher(sink, key=key_of, limits=limits(), clock=fake_clock) as batcher:
        receipts = await all_of(batcher, some("abcde"))
        await batcher.add_many(some("abcde", 1))
        outcomes = [await receipt.settled() for receipt in receipts]
        assert fake_clock.now() - began >= 10.0
        assert [*outcomes] == [Outcome.DELIVERED] * 5
    assert [keys for keys, _ in tried] == [list("abcde"), list("abde"), ["c"], ["c"]]


@pytest.mark.parametrize("prefix_safe", [False, True])
async def test_a_group_that_is_larger_than_a_batch_spans_batches_in_order(
    fake_clock: FakeClock, *, prefix_safe: bool
) -> None:
    """consumer/C:Ba6, consumer/G16, for batches: the waiter resumes after the last one."""
    sink = Gate(prefix_safe=prefix_safe)
    async with Batcher(sink, key=key_of, limits=limits(), clock=fake_clock) as batcher:
        receipts = await all_of(batcher, [Item("k", number) for number in range(12)])
        together = fake_clock.loop.create_task(gather(receipts))
        await fake_clock.advance(2.0)
        while sink.waiting:
            assert not together.done()
            sink.open()
            await fake_clock.advance(2.0)
        assert together.done()
    assert sink.applied["k"] == list(range(12))
    assert [len(batch) for batch in sink.batches] == ([5, 5, 2] if prefix_safe else [1] * 12)
    assert not sink.broken


ANSWERS: dict[str, Callable[[Batch[Item]], Any]] = {
    "too few": lambda batch: WriteResult.from_outcomes(batch, [None] * (len(batch) - 1)),
    "too many": lambda batch: WriteResult.from_outcomes(batch, [None] * (len(batch) + 1)),
    "another type": lambda batch: "done",
}


@pytest.mark.parametrize("answer", ANSWERS)
@keyed
async def test_an_answer_that_fits_no_batch_leaves_it_unknown_and_its_keys_free(
    fake_clock: FakeClock, options: Any, answer: str
) -> None:
    """B-T44, batcher/4a.4: it is not resent automatically, and later items continue."""
    calls: list[int] = []

    async def write(batch: Batch[Item]) -> Any:
        calls.append(len(batch))
        return ANSWERS[answer](batch) if any(item.number == 0 for item in batch) else None

    async with Batcher(
        stack(write, Retry(attempts=5)), limits=limits(), clock=fake_clock, **options
    ) as batcher:
        receipts = await all_of(batcher, some("aaaaa" if "tenant" not in options else "a"))
        behind = await all_of(batcher, some("a", 1))
        await fake_clock.advance(60.0)
        assert receipts[0].outcome is Outcome.UNKNOWN
        with pytest.raises(ItemFailed) as failed:
            await receipts[0]
        assert isinstance(failed.value.__cause__, ResultMismatch)
        assert behind[0].outcome is Outcome.DELIVERED
    assert len(calls) == (len(receipts) + 1 if options else 2)


@pytest.mark.parametrize("prefix_safe", [False, True])
async def test_an_item_that_makes_its_batch_raise_ends_alone(
    fake_clock: FakeClock, *, prefix_safe: bool
) -> None:
    """consumer/C:Ba2, for batches: no livelock; halving finds the item, and its neighbours are
    delivered, each key in order.
    """
    poison = Item("c", 0)

    async def perform(sink: Destination, batch: Batch[Item]) -> None:
        if poison in batch:
            raise PermanentError("something is wrong with this batch")
        sink.apply(*batch)

    letters: FakeSink[Any] = FakeSink()
    sink = Destination(perform, prefix_safe=prefix_safe)
    async with Batcher(
        stack(sink, Isolate(), DeadLetter(letters)),
        key=key_of,
        limits=limits(max_items=8),
        clock=fake_clock,
    ) as batcher:
        await batcher.add_many([*some("abcdefgh"), *some("abcdefgh", 1)])
        await batcher.flush()
        await fake_clock.run_until_idle()
        tally = batcher.tally()
    assert (tally.delivered, tally.dead_lettered) == (15, 1)
    assert [record.item for call in letters.calls for record in call.items] == [poison]
    assert {key: sink.applied[key] for key in "abcdefgh"} == {
        key: [0, 1] if key != "c" else [1] for key in "abcdefgh"
    }
    assert len([batch for batch in sink.batches if len(batch) < 8 or poison in batch]) <= 2 * 3 + 1
    assert not sink.broken


@keyed
async def test_what_is_handed_in_after_the_end_is_refused_and_never_called_done(
    fake_clock: FakeClock, options: Any
) -> None:
    """G-T14: pending items have been drained or are reported; later ones get an error."""
    sink: BlockingSink[Item] = BlockingSink()
    batcher = Batcher(sink, limits=limits(), clock=fake_clock, shutdown_deadline=2.0, **options)
    async with batcher:
        receipts = await all_of(batcher, [*some("abcde"), *some("abcde", 1)])
        report = await batcher.shutdown()
        report.verify()
        ends = [receipt.outcome for receipt in receipts]
        assert ends.count(Outcome.UNKNOWN) + ends.count(Outcome.UNSENT) == 10
        assert len(report.unsent) == ends.count(Outcome.UNSENT)
        for add in (
            batcher.add(Item("f", 0)),
            batcher.add_many(some("fg")),
            batcher.submit(Item("f", 0)),
        ):
            with pytest.raises(ClosedError):
                await add
    assert batcher.tally().delivered == 0
