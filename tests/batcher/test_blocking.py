"""The batcher for threads. Gates are opened by the test, so nothing depends on how threads are
scheduled.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from itertools import chain
from types import FrameType
from typing import Any

import pytest

from penstock import (
    AddTimeout,
    Batch,
    BatcherBroken,
    BlockingBatcher,
    Clock,
    ClosedError,
    ConfigError,
    DrainTimeout,
    ItemFailed,
    ItemTooLarge,
    LedgerFull,
    Limits,
    Outcome,
    PermanentError,
)
from penstock.batcher.setup import Setup, checked_setup
from penstock.batcher.threads import thread_run
from penstock.batcher.threads.inbox import Inbox, InboxEntry
from penstock.batcher.threads.inbox_batcher import InboxBatcher
from penstock.testing import FakeClock

PATIENCE = 20.0
"""Seconds after which a test that hangs fails."""


class Plain:
    """A plain function as a sink, which runs in its own thread; writes wait while the gate is
    shut.
    """

    def __init__(self, *, shut: bool = False, error: Exception | None = None) -> None:
        self.gate = threading.Event()
        self.called = threading.Event()
        self.items: list[Any] = []
        self.batches: list[tuple[Any, ...]] = []
        self.error = error
        if not shut:
            self.gate.set()

    def __call__(self, batch: Batch[Any]) -> None:
        self.called.set()
        assert self.gate.wait(PATIENCE)
        if self.error is not None:
            raise self.error
        self.items.extend(batch)
        self.batches.append(tuple(batch))


@contextmanager
def full(sink: Plain, **options: Any) -> Iterator[BlockingBatcher[Any]]:
    """A full batcher, with 2 items at the destination and 2 behind them."""
    with BlockingBatcher(
        sink, limits=Limits(max_items=2, max_pending_items=4, max_delay=60.0), **options
    ) as batcher:
        batcher.add_many([0, 1])
        assert sink.called.wait(PATIENCE)
        batcher.add_many([2, 3])
        try:
            yield batcher
        finally:
            sink.gate.set()


@contextmanager
def restless() -> Iterator[None]:
    """Switch threads as often as possible."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


def waits(batcher: BlockingBatcher[Any], producers: int) -> None:
    """Return when this many producers wait for capacity; each check is a round trip to the loop."""
    while batcher.stats().waiting_producers < producers:
        pass


# -- in and out ------------------------------------------------------------------------------------


def test_threads_share_one_batcher_and_each_keeps_its_order() -> None:
    """design 4: many threads, one ledger, nothing lost or doubled."""
    sink = Plain()
    with (
        restless(),
        BlockingBatcher(sink, limits=Limits(max_items=50, max_pending_items=150)) as batcher,
    ):

        def produce(name: int) -> None:
            for count in range(2_000):
                batcher.add((name, count))

        with ThreadPoolExecutor(4) as threads:
            list(threads.map(produce, range(4)))
    assert batcher.report is not None
    batcher.report.verify()
    assert batcher.report.tally.delivered == 8_000
    for name in range(4):
        assert [count for owner, count in sink.items if owner == name] == list(range(2_000))


def test_the_ledger_bounds_what_threads_hand_in() -> None:
    """design 4: the inbox is part of the ledger. The sum never exceeds it, at any moment, for any
    observer.
    """
    sink = Plain(shut=True)
    limits = Limits(max_items=5, max_pending_items=20)
    accepted = 0
    with restless(), BlockingBatcher(sink, limits=limits) as batcher:

        def produce(_: int) -> int:
            return sum(batcher.try_add("item") for _ in range(200))

        with ThreadPoolExecutor(4) as threads:
            accepted = sum(threads.map(produce, range(4)))
        stats = batcher.stats()
        assert stats.tally.inside == accepted == 20
        assert stats.tally.refused == 800 - 20
        sink.gate.set()
    assert len(sink.items) == 20


def test_the_loop_is_woken_once_for_many_items() -> None:
    """design 4: one append and at most one wake-up per add."""
    woken: list[int] = []
    inbox: Inbox[int] = Inbox(lambda: woken.append(1))
    inbox.lend(10, 0)
    assert [inbox.put(item) for item in range(12)] == [True] * 10 + [False] * 2
    assert inbox.put_all([InboxEntry(1, 0, None)]) is False
    assert len(woken) == 1
    assert inbox.take()[0] == list(range(10))
    assert not inbox.put(10), "what was taken has used the room up"
    inbox.lend(1, 0)
    assert inbox.put(11)
    assert len(woken) == 2


@pytest.mark.parametrize("operation", ["put", "put_all", "take", "lend"])
def test_an_item_may_come_in_between_any_two_steps(operation: str) -> None:
    """A signal handler or a finalizer that logs interrupts an `add` in its own thread; nothing
    hangs, and no item is left behind.
    """
    for step in range(100):
        woken: list[int] = []
        inbox: Inbox[str] = Inbox(partial(woken.append, 1))
        inbox.lend(10, 10)
        inbox.put("first")
        operations: dict[str, Callable[[], Any]] = {
            "put": partial(inbox.put, "item"),
            "put_all": partial(inbox.put_all, [InboxEntry("item", 1, None)]),
            "take": inbox.take,
            "lend": partial(inbox.lend, 10, 10),
        }
        with interrupted(step, partial(inbox.put, "handled")) as interruptions:
            answer = operations[operation]()
        if not interruptions:
            assert step >= 2
            return
        left = [*chain(*inbox.take())]
        came_in = [*chain(*answer), *left] if operation == "take" else left
        assert len(came_in) == (2 if operation in {"take", "lend"} else 3)
        assert len(woken) == 2 or not (operation == "take" and left), (
            "whatever is left has asked to be taken"
        )


@contextmanager
def interrupted(step: int, interrupt: Callable[[], object]) -> Iterator[list[int]]:
    """Interrupt the inbox once, before its line number n."""
    seen = 0
    interruptions: list[int] = []

    def on_line(frame: FrameType, event: str, _: object) -> Any:
        nonlocal seen
        if event == "line":
            seen += 1
            if seen == step + 1:
                sys.settrace(None)
                interruptions.append(frame.f_lineno)
                interrupt()
        return on_line

    before = sys.gettrace()
    sys.settrace(
        lambda frame, _, __: on_line if frame.f_code.co_filename.endswith("inbox.py") else None
    )
    try:
        yield interruptions
    finally:
        sys.settrace(before)


@pytest.mark.parametrize("admit", [True, False])
def test_an_add_that_races_a_shutdown_is_written_or_refused(admit: bool) -> None:
    """B-T7 with threads: every accepted item is in the sink exactly once."""
    for _ in range(20):
        sink = Plain()
        accepted: list[tuple[int, int]] = []
        begun = threading.Barrier(3)
        with (
            restless(),
            BlockingBatcher(sink, limits=Limits(max_items=3, max_pending_items=9)) as batcher,
        ):

            def produce(
                name: int,
                begun: threading.Barrier = begun,
                accepted: list[tuple[int, int]] = accepted,
            ) -> None:
                begun.wait(PATIENCE)
                for count in range(1_000_000):
                    try:
                        if count % 3:
                            batcher.add((name, count))
                        elif not batcher.try_add((name, count)):
                            continue
                    except ClosedError:
                        return
                    accepted.append((name, count))

            threads = [threading.Thread(target=produce, args=(name,)) for name in range(2)]
            for thread in threads:
                thread.start()
            begun.wait(PATIENCE)
            report = batcher.shutdown(admit_waiting=admit)
            for thread in threads:
                thread.join(PATIENCE)
        report.verify()
        assert report.complete
        assert sorted(sink.items) == sorted(accepted)


def test_items_are_written_when_they_are_due_and_by_flush() -> None:
    """A batch waits for `max_delay`; `flush` covers exactly what was added before."""
    sink = Plain()
    with BlockingBatcher(sink, limits=Limits(max_delay=0.01)) as batcher:
        assert batcher.submit("due").result(PATIENCE) is Outcome.DELIVERED
    with BlockingBatcher(sink, limits=Limits(max_delay=60.0)) as batcher:
        batcher.add("asked for")
        report = batcher.flush(timeout=PATIENCE)
        assert report.complete
        assert report.outcomes == {Outcome.DELIVERED: 1}
        assert sink.batches == [("due",), ("asked for",)]
    assert batcher.flush().complete, "a closed one has nothing left"


# -- a full ledger ---------------------------------------------------------------------------------


def test_add_waits_for_room_and_its_timeout_leaves_nothing_behind() -> None:
    """batcher/B8: errors are raised in the calling thread."""
    sink = Plain(shut=True)
    with full(sink) as batcher:
        with pytest.raises(AddTimeout) as caught:
            batcher.add("late", timeout=0.01)
        assert caught.value.retry_after == 5.0
        with ThreadPoolExecutor(1) as threads:
            waiting = threads.submit(batcher.add, "patient")
            waits(batcher, 1)
            assert not batcher.try_add("newcomer"), "nobody overtakes"
            sink.gate.set()
            waiting.result(PATIENCE)
    assert sink.items == [0, 1, 2, 3, "patient"]
    assert batcher.report is not None
    assert batcher.report.tally.refused == 2


async def test_nothing_comes_in_beside_an_item_that_takes_the_long_way(
    fake_clock: FakeClock,
) -> None:
    """The slow-path item has its capacity; an item accepted before its append would exceed the
    ledger's limit.
    """
    beside: list[bool] = []

    def size_of(item: str) -> int:
        beside.append(batcher.inbox.put_all([InboxEntry("beside", 1, None)]))
        return 1

    limits = Limits(max_pending_bytes=100)
    setup: Setup[str] = checked_setup(BlockingBatcher, Plain(), limits=limits, size_of=size_of)
    batcher: InboxBatcher[str] = InboxBatcher(setup, wake=lambda: None)
    await batcher.open()
    await batcher.let_in(("item",), (None,), None)
    assert beside == [False]
    assert batcher.inbox.put_all([InboxEntry("after", 1, None)])
    report = await batcher.shut_down(1.0, admit_waiting=False)
    assert report.tally.delivered == 2


def test_a_full_ledger_can_refuse() -> None:
    """batcher/B10."""
    sink = Plain(shut=True)
    with full(sink, overflow="reject") as batcher:
        with pytest.raises(LedgerFull):
            batcher.add(4)
    assert sink.items == [0, 1, 2, 3]


def test_a_full_ledger_can_drop_the_newest() -> None:
    """B-T9: the old ones survive, each loss is counted, and receipts say so."""
    sink = Plain(shut=True)
    with full(sink, overflow="drop_newest") as batcher:
        batcher.add(4)
        assert not batcher.try_add(5)
        with pytest.raises(ItemFailed) as caught:
            batcher.submit(6).result(PATIENCE)
        assert caught.value.outcome is Outcome.DROPPED
        assert batcher.tally().dropped == 3
    assert sink.items == [0, 1, 2, 3]


def test_a_full_ledger_can_drop_the_oldest() -> None:
    """B-T9: the new ones survive; items in flight stay."""
    sink = Plain(shut=True)
    with full(sink, overflow="drop_oldest") as batcher:
        batcher.add(4)
        assert batcher.try_add(5)
        assert batcher.tally().dropped == 2
    assert sink.items == [0, 1, 4, 5]


@pytest.mark.parametrize(
    ("overflow", "answer", "dropped"), [("drop_newest", False, 2), ("drop_oldest", True, 0)]
)
def test_a_loop_that_does_not_keep_up_is_not_waited_for(
    overflow: Any, answer: bool, dropped: int
) -> None:
    """`try_add` may be called in a signal handler, or on an event loop: it neither waits nor
    accumulates work for the loop.
    """
    gate, called = threading.Event(), threading.Event()
    items: list[int] = []

    async def write(batch: Batch[int]) -> None:
        called.set()
        gate.wait(PATIENCE)
        items.extend(batch)

    limits = Limits(max_items=2, max_pending_items=4, max_delay=60.0)
    with BlockingBatcher(write, limits=limits, overflow=overflow) as batcher:
        batcher.add_many([-2, -1])
        assert called.wait(PATIENCE)
        answers = [batcher.try_add(item) for item in range(10)]
        assert answers[:4] == [True, True, answer, answer]
        assert answers[4:] == [False] * 6
        gate.set()
        tally = batcher.tally()
    assert (tally.dropped, tally.refused, tally.accepted) == (dropped, 6, 6)
    assert items == [-2, -1, *range(4 - dropped)], (
        "room that has come free meanwhile is used for what was promised a place"
    )


def test_bytes_are_bounded_too() -> None:
    """batcher/B6: measured in the adding thread."""
    sink = Plain(shut=True)
    limits = Limits(max_items=2, max_bytes=6, max_pending_bytes=12, max_delay=60.0)
    with BlockingBatcher(sink, limits=limits, oversize="reject") as batcher:
        batcher.add(b"123456")
        assert sink.called.wait(PATIENCE)
        batcher.add_many([b"12", b"34"])
        assert not batcher.try_add(b"345")
        with pytest.raises(ItemTooLarge):
            batcher.add(b"1234567")
        with pytest.raises(TypeError, match="size_of"):
            batcher.add("text")
        assert batcher.try_add(b"56")
        sink.gate.set()
    assert sink.batches == [(b"123456",), (b"12", b"34"), (b"56",)]


# -- receipts --------------------------------------------------------------------------------------


def test_a_receipt_blocks_until_the_outcome() -> None:
    """batcher/B54, batcher/B47: any number of threads may wait, each gets its own error."""
    sink = Plain(shut=True)
    with BlockingBatcher(sink, limits=Limits(max_items=1, max_pending_items=10)) as batcher:
        receipt = batcher.submit("item")
        assert not receipt.done
        for timeout in (0.01, timedelta(milliseconds=10)):
            with pytest.raises(TimeoutError, match=r"no outcome after 0\.01 s"):
                receipt.result(timeout)
        with ThreadPoolExecutor(3) as threads:
            waiting = [threads.submit(receipt.result) for _ in range(3)]
            sink.gate.set()
            assert [each.result(PATIENCE) for each in waiting] == [Outcome.DELIVERED] * 3
        assert batcher.deliver("another") is Outcome.DELIVERED
        sink.error = PermanentError("no")
        failed = batcher.submit("bad")
        errors = []
        for _ in range(2):
            with pytest.raises(ItemFailed) as caught:
                failed.result(PATIENCE)
            errors.append(caught.value)
        assert errors[0] is not errors[1]
        assert errors[0].outcome is Outcome.REJECTED
    assert repr(failed) == "BlockingReceipt(rejected)"


@pytest.mark.parametrize("timeout", ["1", True, -1.0, float("nan")])
def test_a_bad_timeout_of_a_result_is_refused(timeout: Any) -> None:
    """B-T30, batcher/B47: also if the item already has its outcome."""
    with BlockingBatcher(Plain()) as batcher:
        receipt = batcher.submit("item")
        with pytest.raises(ConfigError, match=r"timeout=.*: must be at least 0 seconds"):
            receipt.result(timeout)
        assert receipt.result(PATIENCE) is Outcome.DELIVERED


# -- opening and closing ---------------------------------------------------------------------------


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
    monkeypatch.setattr(thread_run, "SLACK", 0.05)
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


# -- processes -------------------------------------------------------------------------------------


def script(text: str) -> str:
    """Run a program and return its output. Any output on stderr fails the test."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(text)],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@pytest.mark.parametrize("kind", ["def", "async def"])
def test_it_is_drained_at_the_interpreters_exit(kind: str) -> None:
    """design 4. A plain function still gets a thread to write in."""
    out = script(f"""
        from penstock import BlockingBatcher, Limits

        {kind} write(batch):
            print("wrote", len(batch), batch.reason.value)

        batcher = BlockingBatcher(write, limits=Limits(max_delay=60.0)).start()
        for item in range(7):
            batcher.add(item)
    """)
    assert out == "wrote 7 shutdown\n"


@pytest.mark.skipif(not hasattr(__import__("os"), "fork"), reason="nothing forks here")
def test_a_forked_child_starts_empty() -> None:
    """batcher/4b.14: pending items belong to the parent, which continues; the child has its own
    tally.
    """
    out = script("""
        import os, threading, warnings
        from penstock import BlockingBatcher, Limits

        warnings.simplefilter("ignore", DeprecationWarning)  # a fork with threads running: that is the point

        async def write(batch):
            print("parent" if os.getpid() == parent else "child", "wrote", *batch, flush=True)

        parent = os.getpid()
        batcher = BlockingBatcher(write, limits=Limits(max_delay=60.0))
        with batcher:
            batcher.add("before")
            child = os.fork()
            if child == 0:
                assert batcher.tally().accepted == 0
                batcher.add("of the child")
                assert batcher.try_add("of the child")
                report = batcher.shutdown()
                report.verify()
                assert report.tally.delivered == 2
                os._exit(0)
            assert os.waitpid(child, 0)[1] == 0
            idle = os.fork()
            if idle == 0:
                assert batcher.shutdown().tally.accepted == 0
                os._exit(0)
            assert os.waitpid(idle, 0)[1] == 0
            batcher.add("after")
        assert batcher.report.tally.delivered == 2
    """)
    assert out == "child wrote of the child of the child\nparent wrote before after\n"


@pytest.mark.skipif(not hasattr(__import__("os"), "fork"), reason="nothing forks here")
def test_a_child_of_multiprocessing_drains_at_its_exit() -> None:
    """batcher/4b.14: its exit stops threads as the interpreter's does."""
    out = script("""
        import multiprocessing, os, warnings
        from penstock import BlockingBatcher, Limits

        warnings.simplefilter("ignore", DeprecationWarning)

        def write(batch):
            print(len(batch), "items", flush=True)

        batcher = BlockingBatcher(write, limits=Limits(max_delay=60.0)).start()

        def work():
            for item in range(3):
                batcher.add(item)

        child = multiprocessing.get_context("fork").Process(target=work)
        child.start()
        child.join()
        assert child.exitcode == 0
        batcher.add("of the parent")
    """)
    assert out == "3 items\n1 items\n"


def test_an_item_that_finds_no_older_one_to_replace_is_dropped_once() -> None:
    """All bytes of the ledger are in flight, so no item can be evicted."""
    release = threading.Event()

    def write(batch: Batch[bytes]) -> None:
        release.wait(10.0)

    limits = Limits(max_items=1, max_pending_items=4, max_pending_bytes=10)
    with BlockingBatcher[bytes](write, limits=limits, overflow="drop_oldest") as batcher:
        batcher.add(b"x" * 10)
        assert batcher.try_add(b"y")  # announced; the loop decides its outcome
        tally = batcher.tally()
        assert (tally.accepted, tally.dropped, tally.inside) == (2, 1, 1)
        release.set()
    assert batcher.report is not None
    assert (batcher.report.tally.accepted, batcher.report.tally.dropped) == (2, 1)
