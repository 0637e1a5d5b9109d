"""Opening of sinks: counted per object and loop; before that they are descriptions."""

from __future__ import annotations

import asyncio
import pickle
import threading
from typing import TYPE_CHECKING, Any

import cloudpickle
import pytest

from penstock import (
    Batch,
    Batcher,
    ConfigError,
    NotPicklableError,
    Retry,
    RowBatch,
    Timeout,
    send,
    stack,
)
from penstock._core.decorator import WrappingSink
from penstock._core.opening import Openable, opened
from penstock.sinks import MemorySink

if TYPE_CHECKING:
    from contextlib import AsyncExitStack

    from penstock import Sink
    from penstock.testing import FakeClock


class Door(Openable):
    """Counts how often it is opened and closed."""

    _run_time = ("handle",)

    def __init__(self, *, fail: bool = False, argument: Any = None) -> None:
        self.fail = fail
        self.argument = argument
        self.handle: Any = None
        self.log: list[str] = []

    async def _open(self, stack: AsyncExitStack) -> None:
        if self.fail:
            raise ConnectionRefusedError("nobody there")
        self.handle = threading.Lock()  # not picklable
        self.log.append("open")
        stack.callback(self.log.append, "close")

    async def write(self, batch: Batch[Any]) -> None:
        assert self.handle is not None


class Twice(WrappingSink[Any]):
    """Opens a second sink besides its inner one, as a dead letter does."""

    def __init__(self, inner: Sink[Any], target: Sink[Any]) -> None:
        super().__init__(inner)
        self.target = target

    async def _open(self, stack: AsyncExitStack) -> None:
        await super()._open(stack)
        await stack.enter_async_context(opened(self.target))

    async def write(self, batch: Batch[Any]) -> None:
        await send(self.inner, batch)


async def test_one_sink_in_two_stacks_and_as_its_own_dead_letter_is_opened_once(
    fake_clock: FakeClock,
) -> None:
    """B-T45: it is closed after its last user."""
    door = Door()
    first = Batcher(stack(door, Timeout(1.0), Retry()))
    second = Batcher(Twice(stack(door, Retry()), door))
    async with first:
        async with second:
            await first.add(1)
            await second.add(2)
        assert door.log == ["open"]
        assert door.is_open
    assert door.log == ["open", "close"]
    assert door.handle is None


async def test_a_failed_opening_leaves_nothing_open(fake_clock: FakeClock) -> None:
    """B-T45: the count is back at 0, and sinks opened before are closed."""
    good, bad = Door(), Door(fail=True)
    batcher = Batcher(Twice(good, bad))
    with pytest.raises(ConnectionRefusedError):
        await batcher.__aenter__()
    assert good.log == ["open", "close"]
    assert not bad.is_open
    bad.fail = False
    async with batcher:
        assert bad.is_open


def test_a_second_live_loop_is_refused_and_a_dead_one_forgotten() -> None:
    """B-T45."""
    door = Door()
    loop = asyncio.new_event_loop()
    loop.run_until_complete(door.__aenter__())

    async def other() -> None:
        async with door:
            pass

    with pytest.raises(ConfigError, match="open on another running event loop"):
        asyncio.run(other())
    loop.close()
    asyncio.run(other())
    assert door.log == ["open", "open", "close"]


async def test_a_sink_pickled_while_open_gives_a_closed_description(fake_clock: FakeClock) -> None:
    """B-T45."""
    door = Door(argument="kept")
    async with door:
        copy: Door = pickle.loads(pickle.dumps(door))
        assert (copy.handle, copy.is_open, copy.argument) == (None, False, "kept")
        whole: Any = cloudpickle.loads(cloudpickle.dumps(stack(door, Timeout(2.0), Retry())))
    async with whole:
        assert await send(whole, RowBatch([1])) == {}


def test_an_argument_that_cannot_travel_is_named() -> None:
    """design 3.2."""
    with pytest.raises(
        NotPicklableError, match="Door: the argument argument=lock cannot be pickled"
    ):
        pickle.dumps(Door(argument=threading.Lock()))


async def test_a_sink_that_cannot_be_opened_needs_not_be(fake_clock: FakeClock) -> None:
    """A sink needs only `write`."""
    sink: MemorySink[int] = MemorySink()
    async with Batcher(stack(sink, Timeout(1.0))) as batcher:
        await batcher.add(1)
    assert sink.items == [1]
    assert repr(sink) == "MemorySink(1 items in 1 batches)"
    sink.clear()
    assert sink.items == []
