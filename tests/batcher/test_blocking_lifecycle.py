"""Opening and closing a `BlockingBatcher`: its states, its shutdown, and errors of wrong calls.

White box: the slack of a deadline is shortened.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from blocking_help import PATIENCE, Plain, full, waits

from sluicegate import (
    Batch,
    BlockingBatcher,
    ClosedError,
    ConfigError,
    DrainTimeout,
    ItemFailed,
    Limits,
    PermanentError,
)
from sluicegate.batcher import Clock, blocking
from sluicegate.errors import BatcherBroken

# fuse


def test_use_before_opening_and_after_closing_says_so() -> None:
    """Each message says what to do."""
    batcher: BlockingBatcher[int] = BlockingBatcher(Plain(), name="audit")
    for call in (
        lambda: batcher.add(1),
        lambda: batcher.submit(1),
        batcher.flush,
        batcher.shutdown,
    ):
        with pytest.raises(
            ClosedError, match="batcher 'audit' is not open: use `with batcher:`, or start"
        ):
            call()
    assert batcher.stats().state == "new"
    assert not batcher.try_add(1)
    with batcher:
        with pytest.raises(ConfigError, match="is open; start it once"):
            batcher.start()
        assert repr(batcher) == "BlockingBatcher(name='audit', state='open')"
    with pytest.raises(ClosedError, match="closed"):
        batcher.add(1)
    assert not batcher.try_add(1)
    assert batcher.shutdown() is batcher.report
    assert batcher.stats().state == "closed"
    assert batcher.tally().refused == 1, "the tally starts anew when it is opened"


def test_it_may_be_opened_again() -> None:
    """Like a `Batcher`: with a new tally."""
    sink = Plain()
    batcher: BlockingBatcher[int] = BlockingBatcher(sink)
    for item in range(2):
        with batcher:
            batcher.add(item)
        assert batcher.report is not None
        assert batcher.report.tally.delivered == 1
    assert sink.items == [0, 1]


def test_all_who_shut_down_get_the_one_report_and_waiting_producers_an_error() -> None:
    """B-T6 with threads."""
    sink = Plain(shut=True)
    with full(sink) as batcher, ThreadPoolExecutor(6) as threads:
        waiting = threads.submit(batcher.add, "late")
        waits(batcher, 1)
        reports = [threads.submit(batcher.shutdown) for _ in range(5)]
        with pytest.raises(ClosedError):
            waiting.result(PATIENCE)
        sink.gate.set()
        assert len({id(report.result(PATIENCE)) for report in reports}) == 1
    assert sink.items == [0, 1, 2, 3]
    assert batcher.report is not None
    assert batcher.report.complete


def test_a_sink_that_does_not_end_cannot_hold_the_shutdown() -> None:
    """batcher/4b.2 with threads: leaving the block reports the remaining items."""
    sink = Plain(shut=True)
    limits = Limits(max_items=1, max_pending_items=9)
    batcher: BlockingBatcher[str] = BlockingBatcher(sink, limits=limits, shutdown_deadline=0.05)
    try:
        with pytest.raises(DrainTimeout) as caught, batcher:
            batcher.add("taken")
            assert sink.called.wait(PATIENCE)
            batcher.add("queued")
        assert caught.value.report is batcher.report
        assert batcher.report is not None
        assert (batcher.report.unknown, batcher.report.unsent) == (("taken",), ("queued",))
        with pytest.raises(KeyError) as noted, batcher:
            batcher.add("anything")
            raise KeyError
        assert "INCOMPLETE" in noted.value.__notes__[0]
    finally:
        sink.gate.set()


def test_a_loop_that_is_stuck_is_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """An `async def` that blocks stops the loop itself: the shutdown still ends, and its error says
    what to change.
    """
    monkeypatch.setattr(blocking, "SLACK", 0.05)
    gate, called = threading.Event(), threading.Event()

    async def write(batch: Batch[str]) -> None:
        called.set()
        gate.wait(PATIENCE)

    batcher = BlockingBatcher(write, limits=Limits(max_items=1, max_pending_items=9)).start()
    batcher.add("item")
    assert called.wait(PATIENCE)
    with pytest.raises(BatcherBroken, match="must be a plain function"):
        batcher.shutdown(0.01)
    gate.set()
    assert batcher.shutdown().tally.accepted == 1


def test_a_sink_that_cannot_be_opened_leaves_nothing_running() -> None:
    """The error is raised in the thread that starts it."""

    class Unopenable:
        async def __aenter__(self) -> None:
            raise PermanentError("no such table")

        async def __aexit__(self, *error: object) -> None: ...

        async def write(self, batch: Batch[Any]) -> None: ...

    before = threading.active_count()
    batcher: BlockingBatcher[Any] = BlockingBatcher(Unopenable())
    with pytest.raises(PermanentError, match="no such table"):
        batcher.start()
    with pytest.raises(ClosedError, match="not open"):
        batcher.add(1)
    assert threading.active_count() == before


def test_a_broken_batcher_tells_every_thread(caplog: pytest.LogCaptureFixture) -> None:
    """`on_failure="crash"`: pending items are returned, and nothing hangs."""
    sink = Plain(error=PermanentError("no"))
    batcher: BlockingBatcher[int] = BlockingBatcher(
        sink, limits=Limits(max_items=1, max_pending_items=9), on_failure="crash"
    )
    with pytest.raises(ItemFailed), batcher:
        batcher.deliver(1)
    batcher = BlockingBatcher(
        sink, limits=Limits(max_items=1, max_pending_items=9), on_failure="crash"
    ).start()
    with pytest.raises(ItemFailed):
        batcher.deliver(1)
    assert batcher.stats().state == "broken"
    with pytest.raises(BatcherBroken):
        batcher.add(2)
    with pytest.raises(BatcherBroken):
        batcher.flush()
    assert not batcher.try_add(3)
    report = batcher.shutdown()
    report.verify()
    assert report.tally.rejected == 1


async def test_it_refuses_to_block_an_event_loop(real_clock: Clock) -> None:
    """Only `try_add` may be called on an event loop."""
    sink = Plain()
    batcher: BlockingBatcher[str] = BlockingBatcher(sink)
    with pytest.raises(ConfigError, match="would block the event loop"):
        batcher.start()
    await asyncio.to_thread(batcher.start)
    calls: list[Callable[[], object]] = [
        lambda: batcher.add("a"),
        lambda: batcher.add_many(["a"]),
        lambda: batcher.submit("a"),
        lambda: batcher.deliver("a"),
        batcher.flush,
        batcher.shutdown,
    ]
    for call in calls:
        with pytest.raises(ConfigError, match="would block the event loop"):
            call()
    assert batcher.try_add("b")
    report = await asyncio.to_thread(batcher.shutdown)
    assert report.tally.accepted == 1
    assert sink.items == ["b"]


def test_a_bad_argument_is_told_at_once() -> None:
    """Like a `Batcher`: nothing has been started."""
    with pytest.raises(ConfigError, match="overflow='wait': must be one of"):
        BlockingBatcher(Plain(), overflow="wait")  # type: ignore[arg-type]  # that is the point
