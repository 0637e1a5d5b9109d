"""Mistakes of first-time users: each error says what to change."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any, cast

import pytest

from helpers import Recording
from sluicegate import (
    Batch,
    Batcher,
    BlockingBatcher,
    ClosedError,
    ConfigError,
    ItemFailed,
    Limits,
    Observer,
    WriteResult,
    run,
)
from sluicegate.batcher import LoopClock
from sluicegate.errors import ResultMismatch
from sluicegate.testing import FakeClock

new: Any = Batcher  # wrong types are intended here
new_blocking: Any = BlockingBatcher
new_limits: Any = Limits


async def write(batch: Batch[Any]) -> None: ...


async def without_a_batch() -> None: ...


async def with_two(batch: Batch[Any], more: object) -> None: ...


@pytest.mark.parametrize("kind", [new, new_blocking])
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"max_items": 500},
            r"max_items=\.\.\.: \w+ has no such argument; it takes sink, limits, name",
        ),
        ({"limits": Limits}, r"limits=<class 'sluicegate.*Limits'>: must be a Limits\(\.\.\.\)"),
        ({"limits": {"max_items": 5}}, "must be a Limits"),
        ({"name": 5}, "name=5: must be a string that is not empty"),
        ({"observers": [Observer]}, r"contains a class; pass an instance: Observer\(\.\.\.\)"),
        ({"observers": Observer()}, "must be a list of observers"),
        ({"observers": Observer}, "must be a list of observers"),
        (
            {"shutdown_deadline": "25s"},
            r"shutdown_deadline='25s': must be at least 0 seconds \(a number or a timedelta\)",
        ),
    ],
)
def test_a_wrong_argument_is_named_with_the_right_one(
    kind: Any, arguments: dict[str, Any], message: str
) -> None:
    """batcher/B46: the error names the argument, its value and the rule."""
    with pytest.raises(ConfigError, match=message):
        kind(write, **arguments)


@pytest.mark.parametrize(
    ("sink", "message"),
    [
        (Recording, r"is a class; pass an instance: Recording\(\.\.\.\)"),
        (without_a_batch, "must take one argument, the batch"),
        (with_two, "must take one argument, the batch"),
        ("postgresql://localhost", r"'postgresql://\.\.\.': must have `async def write"),
        (5, r"must have `async def write\(self, batch\)`, or be a function of a batch"),
    ],
)
def test_what_is_no_sink_is_told_at_construction(sink: Any, message: str) -> None:
    """Before any item is accepted."""
    with pytest.raises(ConfigError, match=message):
        new(sink)


def test_a_coroutine_is_no_sink() -> None:
    """It is closed, so that Python does not warn that it was never awaited."""
    with pytest.raises(ConfigError, match="must have `async def write"):
        new(without_a_batch())


def test_a_duration_as_text_is_refused_with_what_it_may_be() -> None:
    """batcher/B47."""
    with pytest.raises(
        ConfigError,
        match=r"max_delay='200ms': must be at least 0 seconds \(a number or a timedelta\)",
    ):
        new_limits(max_delay="200ms")


async def test_a_bad_timeout_is_refused_though_there_is_room(fake_clock: FakeClock) -> None:
    """Not only when the ledger is full."""
    async with Batcher(write) as batcher:
        add: Any = batcher.add
        with pytest.raises(ConfigError, match="timeout='1': must be at least 0 seconds"):
            await add("item", timeout="1")


async def test_a_plain_function_that_blocks_does_not_hold_the_loop(real_clock: LoopClock) -> None:
    """It runs in a thread: the loop continues and can open the gate."""
    gate, called = threading.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def block(batch: Batch[int]) -> None:
        loop.call_soon_threadsafe(called.set)
        assert gate.wait(20)

    async with Batcher(block) as batcher:
        receipt = await batcher.submit(1)
        await called.wait()
        gate.set()
        assert (await receipt).is_success


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (lambda batch: 3, "a sink returned 3; expected None"),
        (lambda batch: True, "a sink returned True; expected None"),
        (
            lambda batch: list(batch),
            r"a sink returned \[1, 2\]; expected None \(all delivered\) or a WriteResult",
        ),
        (
            lambda batch: WriteResult.from_outcomes(batch, [None]),
            "1 answers for a batch of 2 items; the outcome of every item is unknown",
        ),
        (
            lambda batch: WriteResult.failed(batch, {7: ValueError()}),
            r"errors are given for \[7\] in a batch of 2 items",
        ),
        (
            lambda batch: WriteResult.from_outcomes(batch, cast("Any", [None, "ok"])),
            "answer 1 is 'ok'; expected None, a safe outcome or an exception",
        ),
    ],
)
async def test_a_sink_that_returns_nonsense_is_told(
    fake_clock: FakeClock, answer: Callable[[Batch[int]], Any], message: str
) -> None:
    """The outcome of each item is unknown, and the error is logged."""

    async def nonsense(batch: Batch[int]) -> Any:
        return answer(batch)

    async with Batcher(nonsense, limits=Limits(max_items=2)) as batcher:
        receipts = [await batcher.submit(item) for item in (1, 2)]
        for receipt in receipts:
            with pytest.raises(ItemFailed) as caught:
                await receipt
            assert isinstance(caught.value.__cause__, ResultMismatch)
            with pytest.raises(ResultMismatch, match=message):
                raise caught.value.__cause__
        assert batcher.tally().unknown == 2


async def test_a_write_that_is_not_async_is_told(fake_clock: FakeClock) -> None:
    """A sink's method may not block the loop; a plain function may, in its thread."""

    class Plain:
        def write(self, batch: Batch[int]) -> None: ...

    async with new(Plain()) as batcher:
        with pytest.raises(ItemFailed, match="make it `async def write"):
            await batcher.deliver(1)


async def test_entering_twice_is_refused(fake_clock: FakeClock) -> None:
    """The batcher does not change."""
    async with Batcher(write, name="audit") as batcher:
        with pytest.raises(
            ConfigError, match="batcher 'audit' is open; enter it once, and share the object"
        ):
            async with batcher:
                raise AssertionError
        await batcher.add(1)
    assert batcher.tally().delivered == 1


async def test_use_before_opening_and_after_closing_is_refused(fake_clock: FakeClock) -> None:
    """The error says what to do."""
    batcher: Batcher[int] = Batcher(write, name="audit")
    for call in (
        lambda: batcher.add(1),
        lambda: batcher.submit(1),
        lambda: batcher.add_many([1]),
        batcher.shutdown,
    ):
        with pytest.raises(
            ClosedError, match="batcher 'audit' is not open: use `async with batcher:`"
        ):
            await call()
    assert not batcher.try_add(1)
    async with batcher:
        pass
    with pytest.raises(ClosedError, match="batcher 'audit' is closed and takes no more items"):
        await batcher.add(1)
    assert not batcher.try_add(1)


async def test_another_event_loop_is_refused(fake_clock: FakeClock) -> None:
    """batcher/B18, I2: a batcher belongs to the loop on which it was opened."""

    async def use(call: Callable[[], Any]) -> None:
        with pytest.raises(
            ConfigError,
            match=r"batcher 'audit' is open on another event loop, .* use a BlockingBatcher",
        ):
            await call()

    async with Batcher(write, name="audit") as batcher:
        for call in (
            lambda: batcher.add(1),
            lambda: batcher.submit(1),
            batcher.flush,
            batcher.shutdown,
            batcher.__aenter__,
        ):
            await asyncio.to_thread(asyncio.run, use(call))
        with pytest.raises(ConfigError, match="from another thread, use a BlockingBatcher"):
            await asyncio.to_thread(batcher.try_add, 1)
        await batcher.add("mine")
    assert batcher.tally().delivered == batcher.tally().accepted == 1


async def test_a_forgotten_await_is_named(fake_clock: FakeClock) -> None:
    """Python warns; no item was added."""
    async with Batcher(write) as batcher:
        with pytest.warns(RuntimeWarning, match=r"coroutine 'Batcher\.add' was never awaited"):
            batcher.add(1)  # type: ignore[unused-coroutine]  # that is the point
        assert batcher.tally().accepted == 0


def test_run_takes_a_coroutine_outside_any_loop() -> None:
    """It leaves no coroutine that was never awaited."""
    run_anything: Any = run

    async def main() -> None:
        with pytest.raises(
            ConfigError,
            match=r"run\(\) would block the event loop that runs in this thread; await the "
            r"coroutine there",
        ):
            run(without_a_batch())

    with pytest.raises(
        ConfigError, match=r"must be a coroutine: call the async function, as in run\(main\(\)\)"
    ):
        run_anything(main)
    with pytest.raises(ConfigError, match="patience='1'"):
        run_anything(main(), patience="1")
    run(main())
