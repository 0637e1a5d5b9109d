"""Adding from threads to a `BlockingBatcher`: its inbox, the written batches, and receipts. Gates
are opened by the test, so nothing depends on how threads are scheduled.

White box: the steps of the inbox, which no caller sees.
"""

from __future__ import annotations

import sys
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
from blocking_help import PATIENCE, Plain

from sluicegate import (
    AddTimeout,
    BlockingBatcher,
    ClosedError,
    ConfigError,
    ItemFailed,
    Limits,
    Outcome,
    PermanentError,
)
from sluicegate.batcher.inbox import Inbox, InboxBatcher, InboxEntry
from sluicegate.batcher.setup import Setup, checked_setup
from sluicegate.errors import DeliverTimeout
from sluicegate.testing import FakeClock


@contextmanager
def restless() -> Iterator[None]:
    """Switch threads as often as possible."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


# -- batches ---------------------------------------------------------------------------------------


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


# -- the inbox -------------------------------------------------------------------------------------


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
    setup: Setup[str] = checked_setup(Plain(), limits=limits, size_of=size_of)
    batcher: InboxBatcher[str] = InboxBatcher(setup, wake=lambda: None)
    await batcher.open()
    await batcher.let_in(("item",), (None,), None)
    assert beside == [False]
    assert batcher.inbox.put_all([InboxEntry("after", 1, None)])
    report = await batcher.shut_down(1.0, admit_waiting=False)
    assert report.tally.delivered == 2


# -- receipts --------------------------------------------------------------------------------------


def test_a_receipt_blocks_until_the_outcome() -> None:
    """batcher/B54, batcher/B47: any number of threads may wait, each gets its own error."""
    sink = Plain(shut=True)
    with BlockingBatcher(sink, limits=Limits(max_items=1, max_pending_items=10)) as batcher:
        receipt = batcher.submit("item")
        assert not receipt.done
        for timeout in (0.01, timedelta(milliseconds=10)):
            with pytest.raises(DeliverTimeout, match=r"no outcome after 0\.01 s") as late:
                receipt.result(timeout)
            assert late.value.receipt is receipt
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


def test_the_timeout_of_deliver_bounds_the_whole_wait_in_threads() -> None:
    """batcher/B47: `AddTimeout`: never written. `DeliverTimeout`: accepted, and written once."""
    sink = Plain(shut=True)
    limits = Limits(max_items=1, max_pending_items=2)
    with BlockingBatcher(sink, limits=limits) as batcher:
        batcher.add("a")
        with pytest.raises(DeliverTimeout, match=r"no outcome after 0\.02 s") as accepted:
            batcher.deliver("b", timeout=0.02)
        with pytest.raises(AddTimeout, match=r"no room within 0\.02 s"):
            batcher.deliver("c", timeout=0.02)
        sink.gate.set()
        assert accepted.value.receipt.result(PATIENCE) is Outcome.DELIVERED
        assert batcher.deliver("d", timeout=PATIENCE) is Outcome.DELIVERED
    assert sink.items == ["a", "b", "d"]


@pytest.mark.parametrize("timeout", ["1", True, -1.0, float("nan")])
def test_a_bad_timeout_of_a_result_is_refused(timeout: Any) -> None:
    """B-T30, batcher/B47: also if the item already has its outcome."""
    with BlockingBatcher(Plain()) as batcher:
        receipt = batcher.submit("item")
        with pytest.raises(ConfigError, match=r"timeout=.*: must be at least 0 seconds"):
            receipt.result(timeout)
        assert receipt.result(PATIENCE) is Outcome.DELIVERED
