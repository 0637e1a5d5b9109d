"""A batcher belongs to the event loop on which it is open: calls from other threads and loops are
refused.

White box: the cheap look at the running loop.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from sluicegate import Batch, Batcher, ConfigError, Limits
from sluicegate._core.runtime.loops import runs_in_thread

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from concurrent.futures import Future

THREADS, CALLS, LONG = 8, 300, 20_000

REFUSED = (
    r"open on another event loop, .* from another thread, use a BlockingBatcher, or "
    r"asyncio\.run_coroutine_threadsafe\("
)


class Rows:
    """A destination with its own counts."""

    def __init__(self) -> None:
        self.rows: Counter[str] = Counter()

    async def write(self, batch: Batch[str]) -> None:
        self.rows.update(batch)


def intrude(batcher: Batcher[str], start: threading.Barrier, calls: int) -> int:
    """Try each method from this thread, which has its own loop; return the number of accepted
    items.
    """
    got_in = 0

    async def through(call: Callable[[], Any]) -> None:
        nonlocal got_in
        try:
            answer = call()
            if isinstance(answer, bool):
                got_in += answer
                return
            await answer
            got_in += 1
        except ConfigError:
            pass

    async def on_own_loop() -> None:
        start.wait()
        for _ in range(calls):
            await through(lambda: batcher.try_add("foreign"))
            await through(lambda: batcher.add("foreign"))
            await through(lambda: batcher.submit("foreign"))
            await through(lambda: batcher.add_many(["foreign"]))

    asyncio.run(on_own_loop())
    return got_in


async def hammered(calls: int, **given: Any) -> None:
    rows = Rows()
    batcher = Batcher[str](rows, limits=Limits(max_items=100, max_delay=60.0), **given)
    start = threading.Barrier(THREADS)
    own = full = 0
    async with batcher:
        with ThreadPoolExecutor(THREADS) as pool:
            intruders: list[Future[int]] = [
                pool.submit(intrude, batcher, start, calls) for _ in range(THREADS)
            ]
            while not all(intruder.done() for intruder in intruders):
                await batcher.add("own")
                got_in = batcher.try_add("own")
                own += 1 + got_in
                full += not got_in
            assert [intruder.result() for intruder in intruders] == [0] * THREADS
        await batcher.flush()
        tally = batcher.tally()
    tally.verify()
    assert rows.rows == {"own": own}
    assert tally.accepted == tally.delivered == own
    assert tally.refused == full


@pytest.mark.parametrize(
    "given",
    [{}, {"key": lambda item: item}, {"tenant": lambda item: item}],
    ids=["plain", "keys", "tenants"],
)
def test_no_item_of_another_thread_gets_in(given: dict[str, Any]) -> None:
    """batcher/B18, I2: the batcher's own thread adds items meanwhile, and its counts stay exact."""
    asyncio.run(hammered(CALLS, **given))


@pytest.mark.soak
def test_no_item_of_another_thread_gets_in_for_long() -> None:
    """As above."""
    asyncio.run(hammered(LONG))


WAYS: dict[str, Callable[[Batcher[str]], Awaitable[object]]] = {
    "add": lambda batcher: batcher.add("foreign"),
    "submit": lambda batcher: batcher.submit("foreign"),
    "deliver": lambda batcher: batcher.deliver("foreign"),
    "add_many": lambda batcher: batcher.add_many(["foreign"]),
    "add_from": lambda batcher: batcher.add_from(["foreign"]),
    "flush": lambda batcher: batcher.flush(),
}


async def by(way: str, batcher: Batcher[str]) -> None:
    await WAYS[way](batcher)


@pytest.mark.parametrize("way", WAYS)
def test_another_loop_of_the_same_thread_is_refused(way: str) -> None:
    """batcher/B18: although no other loop runs at that time: without its own loop nothing would
    write the item.
    """
    rows = Rows()
    batcher = Batcher[str](rows, limits=Limits(max_delay=60.0))
    with asyncio.Runner() as own, asyncio.Runner() as other:
        own.run(batcher.__aenter__())
        own.run(batcher.add("own"))
        with pytest.raises(ConfigError, match=REFUSED):
            other.run(by(way, batcher))
        with pytest.raises(ConfigError, match=REFUSED):
            batcher.try_add("without a loop")
        own.run(batcher.add("own"))
        own.run(batcher.aclose())
    assert rows.rows == {"own": 2}


def test_a_coroutine_that_a_thread_starts_on_the_batchers_loop_is_taken() -> None:
    """This is the way that the error recommends."""
    rows = Rows()

    async def main() -> None:
        loop = asyncio.get_running_loop()
        async with Batcher[str](rows) as batcher:

            def thread() -> None:
                asyncio.run_coroutine_threadsafe(batcher.add("in"), loop).result()

            await asyncio.to_thread(thread)

    asyncio.run(main())
    assert rows.rows == {"in": 1}


def test_a_loop_of_another_library_is_told_apart_as_well() -> None:
    """A loop unknown to its thread: the stand-in checks whether it runs."""

    class Loop:
        running = True

        def is_running(self) -> bool:
            return self.running

    loop: Any = Loop()
    seen = runs_in_thread(loop)
    assert seen._thread_id == threading.get_ident()
    loop.running = False
    assert seen._thread_id is None
