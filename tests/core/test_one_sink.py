"""A batch whose items were settled by one sink is not sent to another one.

White box: sinks are opened without a batcher.
"""

from __future__ import annotations

import asyncio
import pickle
from typing import TYPE_CHECKING, Any
from weakref import ref

import pytest

from sluicegate import (
    Batch,
    Batcher,
    ConfigError,
    FanOut,
    Limits,
    Outcome,
    PermanentError,
    Retry,
    RowBatch,
    TransientError,
    WriteResult,
    send,
    stack,
)
from sluicegate._core.opening import opened
from sluicegate.sinks import MemorySink

if TYPE_CHECKING:
    from sluicegate.testing import FakeClock

REFUSED = r"settled by another sink \(MemorySink.*use FanOut or a batch for each"


class Fails:
    """Stores the items, except those that fail this number of times."""

    def __init__(self, **failures: int) -> None:
        self.items: list[str] = []
        self.failures = failures

    async def write(self, batch: Batch[str]) -> WriteResult | None:
        failed = [i for i, item in enumerate(batch) if self.failures.get(item, 0)]
        for index in failed:
            self.failures[batch[index]] -= 1
        self.items += [item for i, item in enumerate(batch) if i not in failed]
        return WriteResult.failed(batch, {i: TransientError("not now") for i in failed})


async def test_a_second_sink_is_refused_instead_of_getting_less(fake_clock: FakeClock) -> None:
    """B-T61: it would get none of the settled items, and `send` would return no error."""
    first, second, batch = MemorySink[str](), MemorySink[str](), RowBatch("ab")
    assert await send(first, batch) == {}
    with pytest.raises(ConfigError, match=REFUSED):
        await send(second, batch)
    assert await send(first, batch) == {}, "a repeated call is no second sink"
    assert await send(second, RowBatch(batch)) == {}
    assert first.items == second.items == ["a", "b"]


async def test_only_failed_items_go_to_another_sink_when_they_are_picked(
    fake_clock: FakeClock,
) -> None:
    first, second, batch = Fails(b=9), MemorySink[str](), RowBatch("abc")
    errors = await send(first, batch)
    with pytest.raises(ConfigError, match="2 of its 3 items are settled"):
        await send(second, batch)
    assert await send(second, batch.pick(errors)) == {}
    assert (first.items, second.items) == (["a", "c"], ["b"])


async def test_a_sink_that_has_settled_nothing_is_another_one(fake_clock: FakeClock) -> None:
    """It failed and another sink got the items: once it is back, it still has none of them."""
    down, spool, batch = Fails(a=1, b=1), MemorySink[str](), RowBatch("ab")
    assert len(await send(down, batch)) == 2
    assert await send(spool, batch) == {}
    with pytest.raises(ConfigError, match=REFUSED):
        await send(down, batch)


async def test_the_sinks_inside_a_stack_are_retried_with_settled_items(
    fake_clock: FakeClock,
) -> None:
    """A retry, and a decorator that settles items itself and passes the whole batch on."""

    class Known:
        def __init__(self, inner: Fails) -> None:
            self.inner = inner

        async def write(self, batch: Batch[str]) -> WriteResult | None:
            known = [i for i, item in enumerate(batch) if item == "known"]
            batch.settle(known, Outcome.DUPLICATE)
            errors = await send(self.inner, batch) or await send(self.inner, batch)
            return WriteResult.failed(batch, errors) if errors else None

    inner, batch = Fails(b=1), RowBatch(["a", "known", "b"])
    async with opened(sink := stack(Known(inner), Retry(attempts=3))):
        sending = asyncio.get_running_loop().create_task(send(sink, batch))
        await fake_clock.advance(60.0)
        assert await sending == {}
        assert await send(sink, batch) == {}
    assert inner.items == ["a", "b"]


async def test_a_batch_holds_none_of_its_sinks(fake_clock: FakeClock) -> None:
    """A sink may hold its batches; a copy of a batch has no sinks. A sink whose class does not
    support weak references is held, because another one could be mistaken for it.
    """

    class Slim:
        __slots__ = ()

        async def write(self, batch: Batch[str]) -> None: ...

    batch, slim = RowBatch("a"), RowBatch("a")
    await send(sink := MemorySink[str](), batch)
    await send(Slim(), slim)
    assert pickle.loads(pickle.dumps(batch)).delivery.left == 0  # pickled here
    gone = ref(sink)
    del sink
    assert gone() is None
    with pytest.raises(ConfigError, match="which is gone"):
        await send(MemorySink[str](), batch)
    with pytest.raises(ConfigError, match="Slim"):
        await send(Slim(), slim)


async def test_a_fan_out_sends_to_all_of_its_sinks(fake_clock: FakeClock) -> None:
    first, second, batch = MemorySink[str](), MemorySink[str](), RowBatch("ab")
    async with opened(both := FanOut(first, second)):
        assert await send(both, batch) == {}
        assert await send(both, batch) == {}
        with pytest.raises(ConfigError, match="settled by another sink"):
            await send(first, batch)
    assert first.items == second.items == ["a", "b"]


async def test_a_sink_that_writes_to_two_is_heard_of_in_a_batcher(
    fake_clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    """Its items are delivered by then, so no receipt can report it."""
    first, second = MemorySink[int](), MemorySink[int]()

    async def both(batch: Batch[int]) -> None:
        await send(first, batch)
        await send(second, batch)

    async with Batcher[int](
        both, name="orders", limits=Limits(max_items=2), clock=fake_clock
    ) as batcher:
        receipts = [await batcher.submit(number) for number in range(2)]
        assert [await receipt for receipt in receipts] == [Outcome.DELIVERED] * 2
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert "orders: the items of a batch are settled, but ConfigError" in caplog.messages[0]


async def test_another_error_of_a_sink_that_has_settled_all_is_not_logged(
    fake_clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    class Settles(MemorySink[Any]):
        async def write(self, batch: Batch[Any]) -> None:
            batch.settle(range(len(batch)), Outcome.DELIVERED)
            raise PermanentError("afterwards")

    assert await send(Settles(), RowBatch("ab")) == {}
    assert caplog.records == []
