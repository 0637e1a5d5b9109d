"""Items that observers and handlers add during a callback, and order at equal times."""

from __future__ import annotations

import asyncio
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from sluicegate import (
    Backoff,
    Batch,
    Batcher,
    Limits,
    Observer,
    PermanentError,
    Retry,
    UnavailableError,
    stack,
)
from sluicegate.sinks import MemorySink

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sluicegate.testing import FakeClock

WHO = ContextVar("WHO", default="no one")


class Adds(Observer):
    """Adds one item on an event, once."""

    def __init__(self, event: str) -> None:
        self.event = event
        self.told: list[object] = []
        self.batcher: Batcher[str] | None = None

    def _on(self, event: str) -> None:
        if event == self.event and self.batcher is not None:
            batcher, self.batcher = self.batcher, None
            self.told.append(batcher.try_add("from inside"))

    def on_sealed(self, batch: Batch[Any]) -> None:
        self.told.append(("sealed", tuple(batch)))
        self._on("sealed")

    def on_flushed(
        self, batch: Batch[Any], seconds: float, errors: Mapping[int, BaseException]
    ) -> None:
        self.told.append(("flushed", tuple(batch)))
        self._on("flushed")


async def test_an_item_added_while_a_batch_is_sealed_is_not_lost(fake_clock: FakeClock) -> None:
    """The open batch has just been sealed, so the item belongs to the next one."""
    sink: MemorySink[str] = MemorySink()
    observer = Adds("sealed")
    async with Batcher(sink, limits=Limits(max_items=3, max_delay=0.1), observers=[observer]) as it:
        observer.batcher = it
        await it.add("a")
        await it.flush()
        await it.flush()
    assert sink.items == ["a", "from inside"]
    assert it.tally().delivered == 2


async def test_an_item_added_after_a_flush_starts_no_batch_of_its_own(
    fake_clock: FakeClock,
) -> None:
    observer = Adds("flushed")
    limits = Limits(max_items=4, max_delay=60)
    async with Batcher(MemorySink[str](), limits=limits, observers=[observer]) as it:
        observer.batcher = it
        for item in "abcdefghi":
            await it.add(item)
        await fake_clock.run_until_idle()
    assert observer.told[:5] == [
        ("sealed", tuple("abcd")),
        ("flushed", tuple("abcd")),
        True,
        ("sealed", tuple("efgh")),
        ("flushed", tuple("efgh")),
    ]


async def test_tenants_of_one_call_have_their_turns_in_the_order_of_their_items(
    fake_clock: FakeClock,
) -> None:
    """batcher/4b.6: also when several batches are due at the same time."""
    written: list[tuple[str, ...]] = []

    async def sink(batch: Batch[str]) -> None:
        written.append(tuple(batch))

    limits = Limits(max_items=2, max_delay=0.1, workers=2)
    async with Batcher(sink, limits=limits, tenant=lambda item: item[0]) as batcher:
        await batcher.add_many(["a1", "a2", "b1", "a3"])
        await fake_clock.advance(1.0)
    assert written == [("a1", "a2"), ("a3",), ("b1",)]


async def test_a_release_of_nothing_tells_the_time_all_the_same(fake_clock: FakeClock) -> None:
    """The age of an item behind a busy key counts from its own acceptance."""
    written: list[tuple[float, str]] = []

    async def sink(batch: Batch[str]) -> None:
        written.append((round(fake_clock.now() - start, 3), batch[0]))
        await fake_clock.sleep(3.05 if batch[0] == "b1" else 0.05)

    start = fake_clock.now()
    limits = Limits(max_items=5, max_delay=3)
    async with Batcher(
        sink, limits=limits, key=lambda item: item[0], on_key_failure="pause"
    ) as batcher:
        await batcher.add("b1")
        flushing = asyncio.create_task(batcher.flush())
        await fake_clock.sleep(0)
        await batcher.add("a1")
        await fake_clock.advance(0.5)
        batcher.resume("nothing held")
        await batcher.add("a2")
        await fake_clock.advance(6.0)
        await flushing
    assert written == [(0.0, "b1"), (3.05, "a1"), (3.5, "a2")]


async def test_a_write_that_ends_after_the_report_reports_no_state(fake_clock: FakeClock) -> None:
    states: list[str] = []

    class Watch(Observer):
        def on_destination(self, name: str, state: str, reason: str) -> None:
            states.append(state)

    tries: list[object] = []

    async def sink(batch: Batch[str]) -> None:
        tries.append(batch)
        if len(tries) == 1:
            raise UnavailableError("away")
        end = fake_clock.now() + 5
        while fake_clock.now() < end:
            try:
                await fake_clock.sleep(1)
            except asyncio.CancelledError:
                pass

    batcher = Batcher(
        stack(sink, Retry(3, backoff=Backoff(base=0.1, jitter="none"))),
        observers=[Watch()],
        limits=Limits(max_delay=0.1),
    )
    await batcher.__aenter__()
    await batcher.add("a")
    await fake_clock.advance(1.0)
    report = await batcher.shutdown(0.5)
    assert not report.complete
    await fake_clock.advance(20.0)
    assert states == ["unavailable"]


async def test_a_failure_handler_runs_in_the_context_that_opened_the_batcher(
    fake_clock: FakeClock,
) -> None:
    """Also after a batch that has landed in the task of its own write, whose context is empty and
    marked as the batcher's own work.
    """
    seen: list[str] = []

    async def write(batch: Batch[int]) -> None:
        await asyncio.sleep(0)
        if 2 in batch:
            raise PermanentError("no")

    def on_failure(items: object, error: BaseException) -> None:
        seen.append(WHO.get())
        WHO.set("a handler")

    WHO.set("the program")
    limits = Limits(max_items=1)
    async with Batcher[int](write, limits=limits, on_failure=on_failure) as batcher:
        for number in (1, 2, 1, 2):
            await batcher.add(number)
        await batcher.flush()
    assert seen == ["the program", "the program"]
