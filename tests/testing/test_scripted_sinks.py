"""Scripted sinks follow their script and record the calls."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from sluicegate import (
    Batcher,
    Limits,
    Outcome,
    PermanentError,
    RowBatch,
    TransientError,
    UnknownOutcomeError,
    send,
)
from sluicegate.errors import ResultMismatch
from sluicegate.testing import (
    BlockingSink,
    FakeSink,
    FlakySink,
    ScriptedSink,
    SlowSink,
    answer,
    fail,
    hang,
    ignore_cancel,
    partial,
    slow,
)

if TYPE_CHECKING:
    from sluicegate.testing import FakeClock


async def test_steps_are_taken_in_order_and_traced(fake_clock: FakeClock) -> None:
    """B-T33: a flush trace with times, items and reasons."""
    sink: ScriptedSink[str] = ScriptedSink([fail(), slow(2.0), partial({0: PermanentError("bad")})])
    async with Batcher(sink, limits=Limits(max_items=1)) as batcher:
        receipts = [await batcher.submit(item) for item in "abcd"]
        outcomes = [await receipt.settled() for receipt in receipts]
    assert outcomes == [Outcome.REJECTED, Outcome.DELIVERED, Outcome.REJECTED, Outcome.DELIVERED]
    assert sink.applied == ["b", "d"]
    assert sink.trace == [
        (0.0, ("a",), "size"),
        (0.0, ("b",), "size"),
        (2.0, ("c",), "size"),
        (2.0, ("d",), "size"),
    ]
    assert isinstance(sink.calls[0].error, TransientError)


async def test_a_test_can_wait_for_a_call(fake_clock: FakeClock) -> None:
    """B-T33: woken by the call itself."""
    sink: BlockingSink[str] = BlockingSink()
    async with Batcher(sink, limits=Limits(max_delay=5.0)) as batcher:
        await batcher.add("a")
        call = await sink.wait_for_call()
        assert (call.started, call.ended, sink.running) == (5.0, None, 1)
        sink.release()
    assert sink.applied == ["a"]


async def test_the_short_forms(fake_clock: FakeClock) -> None:
    """B-T33: the names that users expect."""
    for sink, failures in ((FakeSink[int](), 0), (SlowSink[int](3.0), 0), (FlakySink[int](2), 2)):
        for _ in range(failures):
            assert set(await send(sink, RowBatch([1]))) == {0}
        assert await send(sink, RowBatch([1])) == {}
        assert sink.applied == [1]


async def test_hanging_deaf_and_nonsense(fake_clock: FakeClock) -> None:
    """Behaviour that the batcher must tolerate."""
    assert isinstance((await send(ScriptedSink([answer(3)]), RowBatch([1])))[0], ResultMismatch)
    hung = asyncio.create_task(send(ScriptedSink([hang()]), RowBatch([1])))
    await asyncio.sleep(1.0)
    hung.cancel()
    with pytest.raises(asyncio.CancelledError):
        await hung
    deaf = asyncio.create_task(send(ScriptedSink([ignore_cancel(50.0)]), RowBatch([1])))
    await asyncio.sleep(1.0)
    deaf.cancel()
    assert await deaf == {}
    assert fake_clock.now() == 51.0


async def test_a_deduplicating_server_tells_writes_apart_by_their_key(
    fake_clock: FakeClock,
) -> None:
    """B-T39: two disjoint picks of a batch have different keys, the same pick twice has one, and
    item keys are stable.
    """
    sink: ScriptedSink[str] = ScriptedSink()
    batch = RowBatch("abcd")
    await sink.write(batch.pick([0, 1]))
    await sink.write(batch.pick([2, 3]))
    await sink.write(batch.pick([2, 3], attempt=2))
    assert batch.pick([3, 1]).item_keys() == [batch.item_keys()[3], batch.item_keys()[1]]
    with batch.child("letters", lambda outcome: outcome) as ways:
        await sink.write(ways["letters"].pick([0, 1]))
    first, second, again, letters = [call.write_key for call in sink.calls]
    assert second == again
    assert len({first, second, letters}) == 3


def test_unknown_is_its_own_class() -> None:
    """It is never merged with failures."""
    assert not issubclass(UnknownOutcomeError, TransientError)
