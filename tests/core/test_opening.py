"""Opening of sinks: counted per object and loop; before that they are descriptions.

White box: the count of openings.
"""

from __future__ import annotations

import asyncio
import pickle
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from functools import partial
from typing import TYPE_CHECKING, Any

import cloudpickle
import pytest
from tests.conformance.table import sources

from sluicegate import Batch, Batcher, ConfigError, Consumer, Retry, RowBatch, Timeout, send, stack
from sluicegate._core.decorator import WrappingSink
from sluicegate._core.opening import only_user, opened
from sluicegate.consumer import MemoryLog, MemorySource, TopicPartition
from sluicegate.errors import NotPicklableError
from sluicegate.files import FileSource
from sluicegate.kafka import ConfluentKafkaSource, KafkaSource
from sluicegate.nats import JetStreamSource
from sluicegate.postgres import PostgresQueueSource, PostgresStreamSource
from sluicegate.sinks import MemorySink, Openable
from sluicegate.testing.conformance.source.subject import RecordingHost

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractAsyncContextManager

    from sluicegate import Sink
    from sluicegate.testing import FakeClock


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


def at_once(enter: Callable[[], AbstractAsyncContextManager[object]], members: int) -> list[str]:
    """Enter the object in as many loops and threads at the same moment, and stay inside until all
    have tried; return their errors.
    """
    begin, end = [threading.Barrier(members, timeout=60) for _ in range(2)]

    async def member() -> str:
        begin.wait()
        told = ""
        async with AsyncExitStack() as stack:
            try:
                await stack.enter_async_context(enter())
            except ConfigError as error:
                told = str(error)
            end.wait()
        return told

    with ThreadPoolExecutor(members) as pool:
        runs = [pool.submit(asyncio.run, member()) for _ in range(members)]
        return sorted(run.result() for run in runs)


def _source() -> MemorySource:
    return MemorySource(MemoryLog(partitions=[TopicPartition("orders", 0)]), ends=True)


BELONGS_TO_ONE_LOOP: dict[str, Callable[[], Callable[[], Any]]] = {
    "a sink": lambda: _same(Door()),
    "a stack": lambda: _same(stack(Door(), Timeout(1.0), Retry())),
    "a batcher": lambda: _same(Batcher(MemorySink[int]())),
    "a source": lambda: partial(_source().open, RecordingHost()),
    "a consumer": lambda: _same(Consumer(_source())),
}


def _same(thing: Any) -> Callable[[], Any]:
    return lambda: thing


@pytest.mark.parametrize("kind", BELONGS_TO_ONE_LOOP)
def test_of_loops_that_enter_at_the_same_moment_one_goes_on(kind: str) -> None:
    """design 3.2: the others are refused at once."""
    for _ in range(5):
        first, *others = at_once(BELONGS_TO_ONE_LOOP[kind](), 4)
        assert first == ""
        assert all(others), others


def test_a_loop_is_refused_while_another_one_still_opens_or_closes() -> None:
    """design 3.2, B-T45."""
    refused: list[str] = []

    async def other() -> None:
        async with door:
            pass

    class Slow(Door):
        async def _open(self, stack: AsyncExitStack) -> None:
            await asyncio.to_thread(try_it)
            await super()._open(stack)
            stack.push_async_callback(asyncio.to_thread, try_it)

    def try_it() -> None:
        with pytest.raises(ConfigError, match="open on another running event loop") as told:
            asyncio.run(other())
        refused.append(str(told.value))

    door = Slow()
    asyncio.run(other())
    assert len(refused) == 2
    assert door.log == ["open", "close"]


SOURCES: list[Callable[[], Any]] = [
    _source,
    lambda: FileSource("logs/*.jsonl", subscription="bills"),
    lambda: JetStreamSource("ORDERS", servers="nats:4222", durable="bills"),
    lambda: KafkaSource("orders", bootstrap="kafka:9092", group="bills"),
    lambda: ConfluentKafkaSource("orders", bootstrap="kafka:9092", group="bills"),
    lambda: PostgresQueueSource("postgresql://db/shop", queue="bills"),
    lambda: PostgresStreamSource("postgresql://db/shop", subscription="bills"),
]


def test_the_sources_of_these_tests_are_all() -> None:
    assert {type(make()) for make in SOURCES} == {*sources().values()}


@pytest.mark.parametrize("make", SOURCES)
async def test_a_source_that_is_open_is_refused_to_a_second_user(
    make: Callable[[], Any], fake_clock: FakeClock
) -> None:
    """Before anything is connected."""
    source = make()
    with only_user(source), pytest.raises(ConfigError, match="is already open; make a separate"):
        await source.open(RecordingHost()).__aenter__()


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
