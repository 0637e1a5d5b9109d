"""`sys.exit()` and Ctrl-C at bad moments: nothing hangs, and every count stays correct."""

from __future__ import annotations

import asyncio
import itertools
import linecache
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, contextmanager, suppress
from types import FrameType
from typing import Any

import pytest

from sluicegate import (
    Batch,
    Batcher,
    BlockingBatcher,
    ItemFailed,
    Limits,
    Observer,
    Outcome,
    PermanentError,
    run,
)
from sluicegate.errors import BatcherBroken
from sluicegate.sinks import Openable

PATIENCE = 20.0
EXITS = [SystemExit(3), KeyboardInterrupt()]


def exits_on(
    item: int, error: BaseException
) -> tuple[list[int], Callable[[Batch[int]], Any], Callable[[Batch[int]], Any]]:
    """The applied items, and a sink as an async function and as a plain one."""
    applied: list[int] = []

    def write(batch: Batch[int]) -> None:
        if item in batch:
            raise error
        applied.extend(batch)

    async def write_async(batch: Batch[int]) -> None:
        write(batch)

    return applied, write, write_async


@pytest.mark.parametrize("is_async", [True, False])
@pytest.mark.parametrize("error", EXITS, ids=repr)
def test_a_sink_that_exits_on_a_batchers_own_thread_ends_only_its_write(
    error: BaseException, is_async: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """A thread cannot end the process; the write's outcome is unknown, and the thread continues."""
    applied, plain, coroutine = exits_on(2, error)
    batcher = BlockingBatcher(
        coroutine if is_async else plain, limits=Limits(max_items=1), name="audit"
    )
    with batcher:
        receipts = [batcher.submit(item) for item in range(5)]
        outcomes: list[Outcome] = []
        for receipt in receipts:
            try:
                outcomes.append(receipt.result(PATIENCE))
            except ItemFailed as failed:
                outcomes.append(failed.outcome)
        assert outcomes == [
            Outcome.UNKNOWN if item == 2 else Outcome.DELIVERED for item in range(5)
        ]
        assert batcher.deliver(7) is Outcome.DELIVERED
    assert batcher.report is not None
    batcher.report.verify()
    assert sorted(applied) == [0, 1, 3, 4, 7]
    assert f"{type(error).__name__} was raised on its thread" in caplog.text


@pytest.mark.parametrize("runner", [asyncio.run, run])
@pytest.mark.parametrize("error", EXITS, ids=repr)
def test_a_sink_that_exits_ends_the_loop_and_every_item_is_accounted_for(
    runner: Callable[[Any], Any], error: BaseException
) -> None:
    """If it exits on the program's own loop, the program ends, and its batchers are shut down
    first.
    """
    applied, _, write = exits_on(1, error)
    batcher = Batcher(write, limits=Limits(max_items=1, workers=2))

    async def main() -> None:
        async with batcher:
            await batcher.add_many(range(6))
            await batcher.flush()
            raise AssertionError

    with pytest.raises(type(error)):
        runner(main())
    assert batcher.report is not None
    batcher.report.verify()
    tally = batcher.report.tally
    assert (tally.accepted, tally.delivered, tally.unknown) == (6, len(applied), 1)
    assert [*batcher.report.unsent] == [
        item for item in range(6) if item != 1 and item not in applied
    ]


PROGRAM = """
    import asyncio, sys
    from sluicegate import Batcher, BlockingBatcher, Limits, Observer, run

    how, where, workers = sys.argv[1:]
    error = {error}

    class Exiting(Observer):
        def on_flushed(self, *_):
            if where == "observer":
                raise error

    async def write(batch):
        if where == "sink":
            raise error
        if where == "handler":
            raise ValueError("no")

    def plain(batch):
        asyncio.run(write(batch))

    def handler(items, error_of_items):
        raise error

    kind = Batcher if how in {{"run", "asyncio"}} else BlockingBatcher
    batcher = kind(
        plain if how == "plain" else write,
        limits=Limits(max_items=1, workers=int(workers)),
        observers=[Exiting()],
        on_failure=handler,
        shutdown_deadline=10.0,
    )

    async def main():
        async with batcher:
            await batcher.add_many(range(5))
            await batcher.flush()

    try:
        if kind is Batcher:
            {{"run": run, "asyncio": asyncio.run}}[how](main())
        else:
            with batcher:
                batcher.add_many(range(5))
    finally:
        batcher.report.verify()
        print(batcher.report.tally.accepted)
"""


ALWAYS = {("run", "sink"), ("asyncio", "handler"), ("threads", "observer"), ("plain", "sink")}


@pytest.mark.parametrize(
    ("how", "where", "error", "workers"),
    [
        pytest.param(
            how,
            where,
            error,
            workers,
            marks=[]
            if (how, where) in ALWAYS and (repr(error), workers) == ("SystemExit(3)", "1")
            else pytest.mark.long,
        )
        for how in ("run", "asyncio", "threads", "plain")
        for where in ("sink", "observer", "handler")
        for error, workers in (
            (SystemExit(3), "1"),
            (KeyboardInterrupt(), "1"),
            (SystemExit(3), "3"),
        )
    ],
    ids=repr,
)
def test_an_exit_at_every_batch_ends_the_program_once_and_with_a_report(
    how: str, where: str, error: BaseException, workers: str
) -> None:
    """The exit code is that of the exit, or on a batcher's own thread that of its report."""
    program = textwrap.dedent(PROGRAM.format(error=repr(error)))
    done = subprocess.run(
        [sys.executable, "-X", "dev", "-c", program, how, where, workers],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stdout == "5\n", done.stderr
    for mistake in ("was destroyed but it is pending", "never awaited", "never retrieved"):
        assert mistake not in done.stderr
    exits = 3 if isinstance(error, SystemExit) else -2
    all_written = where == "observer"
    expected = (0 if all_written else 1) if how in {"threads", "plain"} else exits
    assert done.returncode == expected, done.stderr


class Exiting(Observer):
    def __init__(self, error: BaseException) -> None:
        self.error = error

    def on_flushed(self, batch: Batch[Any], seconds: float, errors: object) -> None:
        if 1 in batch:
            raise self.error


@pytest.mark.parametrize("where", ["observer", "on_failure"])
@pytest.mark.parametrize("runner", [asyncio.run, run])
@pytest.mark.parametrize("error", EXITS, ids=repr)
def test_a_callback_that_exits_ends_the_loop_when_the_batchers_step_is_done(
    runner: Callable[[Any], Any], error: BaseException, where: str
) -> None:
    """The batch of that callback has its outcome, and the shutdown during the exit is exact."""

    async def write(batch: Batch[int]) -> None:
        if 1 in batch:
            raise PermanentError("refused")

    def handler(items: list[int], cause: BaseException) -> None:
        raise error

    arguments: Any = (
        {"observers": [Exiting(error)]} if where == "observer" else {"on_failure": handler}
    )
    batcher: Batcher[int] = Batcher(write, limits=Limits(max_items=1), **arguments)

    async def main() -> None:
        async with batcher:
            await batcher.add_many([0, 1])
            await batcher.flush()
            await asyncio.sleep(PATIENCE)

    with pytest.raises(type(error)):
        runner(main())
    assert batcher.report is not None
    batcher.report.verify()
    assert (batcher.report.tally.delivered, batcher.report.tally.rejected) == (1, 1)


@pytest.mark.parametrize("where", ["observer", "on_failure"])
def test_a_callback_that_exits_on_a_batchers_own_thread_hangs_nobody(
    where: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The thread survives, so producers get a result, and the shutdown returns its report."""

    async def write(batch: Batch[int]) -> None:
        if 1 in batch:
            raise PermanentError("refused")

    def handler(items: list[int], cause: BaseException) -> None:
        raise SystemExit

    arguments: Any = (
        {"observers": [Exiting(SystemExit())]} if where == "observer" else {"on_failure": handler}
    )
    batcher: BlockingBatcher[int] = BlockingBatcher(write, limits=Limits(max_items=1), **arguments)
    with batcher:
        first, second = (batcher.submit(item) for item in (0, 1))
        assert first.result(PATIENCE) is Outcome.DELIVERED
        with pytest.raises(ItemFailed):
            second.result(PATIENCE)
        if where == "observer":
            assert batcher.deliver(2) is Outcome.DELIVERED
        else:
            with pytest.raises(BatcherBroken):
                batcher.flush(PATIENCE)
    assert batcher.report is not None
    batcher.report.verify()
    assert (batcher.report.tally.delivered, batcher.report.tally.rejected) == (
        1 + (where == "observer"),
        1,
    )


OWN = ("inbox.py", "blocking.py", "threads.py", "receipt.py", "indoors.py")


def is_with(frame: FrameType) -> bool:
    """Whether a `with` block begins or ends here: Python handles no signal between a block and the
    release of its lock.
    """
    return linecache.getline(frame.f_code.co_filename, frame.f_lineno).lstrip().startswith("with ")


@contextmanager
def interrupted(step: int) -> Iterator[list[int]]:
    """Raise `KeyboardInterrupt` in this thread once, before line or call number n in the files that
    threads use.
    """
    seen = 0
    strikes: list[int] = []

    def on_step(frame: FrameType, event: str, _: object) -> Any:
        nonlocal seen
        if (
            event in {"call", "line"}
            and frame.f_code.co_filename.endswith(OWN)
            and not is_with(frame)
        ):
            seen += 1
            if seen == step + 1:
                sys.settrace(None)
                strikes.append(frame.f_lineno)
                raise KeyboardInterrupt
        return on_step

    before = sys.gettrace()
    sys.settrace(on_step)
    try:
        with suppress(KeyboardInterrupt):
            yield strikes
    finally:
        sys.settrace(before)


ADDING = ("add", "try_add", "submit", "add_many")
OTHERS = ("flush", "tally", "shutdown")


def calls(batcher: BlockingBatcher[int]) -> dict[str, Callable[[], object]]:
    return {
        "add_many": lambda: batcher.add_many([2, 3]),
        "add": lambda: batcher.add(2),
        "try_add": lambda: batcher.try_add(2),
        "submit": lambda: batcher.submit(2).result(PATIENCE),
        "flush": lambda: batcher.flush(PATIENCE),
        "tally": batcher.tally,
        "shutdown": batcher.shutdown,
    }


@pytest.mark.parametrize(
    ("call", "overflow", "is_full"),
    [
        *((call, "block", False) for call in [*ADDING, *OTHERS]),
        *((call, "block", True) for call in OTHERS),
        *((call, "block", True) for call in ADDING),
        *(
            pytest.param(call, overflow, True, marks=pytest.mark.long)
            for call in ADDING
            for overflow in ("drop_oldest", "drop_newest")
        ),
    ],
)
def test_an_interrupt_between_any_two_steps_of_a_call_leaves_nothing_stuck(
    call: str, overflow: Any, is_full: bool
) -> None:
    """In a call with capacity and in one with a full ledger, which calls that add an item meet by
    `overflow`. The batcher continues, and its report is exact.
    """
    for step in itertools.count():
        applied: list[int] = []
        gate = threading.Event()

        def write(
            batch: Batch[int], gate: threading.Event = gate, applied: list[int] = applied
        ) -> None:
            assert gate.wait(PATIENCE)
            applied.extend(batch)

        limits = Limits(max_items=1, max_pending_items=2)
        batcher: BlockingBatcher[int] = BlockingBatcher(
            write, limits=limits, overflow=overflow
        ).start()
        batcher.add(0)
        if is_full:
            batcher.add(1)
            if call in {"add", "submit", "add_many"}:
                threading.Timer(0.005, gate.set).start()
        if not is_full or call in {"flush", "shutdown"}:
            gate.set()
        with interrupted(step) as strikes, suppress(ItemFailed):  # it may be dropped
            calls(batcher)[call]()
        gate.set()
        if call != "shutdown":
            assert batcher.flush(PATIENCE).complete
            batcher.add(7, timeout=PATIENCE)
            assert batcher.try_add(8) or batcher.flush(PATIENCE).complete
        report = batcher.shutdown(PATIENCE)
        report.verify()
        assert report.complete or call == "shutdown", "an interrupted shutdown ends at once"
        assert (
            report.tally.delivered <= len(applied) <= report.tally.delivered + report.tally.unknown
        )
        assert len(applied) == len(set(applied))
        if not strikes:
            break
        assert step < 2000


@pytest.mark.parametrize("call", ["add", "try_add", "submit", "add_many"])
def test_what_an_interrupted_call_has_put_in_is_written_at_the_next_wake_up(call: str) -> None:
    """No later than with the next item: after an interrupt, no batcher waits for a wake-up that was
    not sent.
    """
    for step in itertools.count():
        with BlockingBatcher[int](lambda batch: None, limits=Limits(max_items=1)) as batcher:
            with interrupted(step) as strikes:
                calls(batcher)[call]()
            assert batcher.submit(9).result(PATIENCE) is Outcome.DELIVERED
        if not strikes:
            break


@pytest.mark.parametrize("step", range(0, 80, 4))
def test_an_interrupt_as_a_batcher_starts_leaves_none_running(step: int) -> None:
    """Opened parts are closed again unless the batcher is open: then it can be shut down, and is at
    exit.
    """
    events: list[str] = []

    class Sink(Openable):
        async def _open(self, stack: AsyncExitStack) -> None:
            events.append("open")
            stack.callback(events.append, "closed")

        async def write(self, batch: Batch[int]) -> None: ...

    batcher: BlockingBatcher[int] = BlockingBatcher(Sink())
    with interrupted(step):
        batcher.start()
    if "state='open'" in repr(batcher):
        batcher.shutdown()
    for thread in threading.enumerate():
        if thread.name.startswith("batcher "):
            thread.join(PATIENCE)
            assert not thread.is_alive()
    assert events in ([], ["open", "closed"])


def test_an_interrupt_at_exit_means_now_and_every_batcher_is_ended() -> None:
    """Including those after the interrupted one."""
    program = """
        import os, signal, threading
        from sluicegate import BlockingBatcher, Limits

        def interrupting(batch):
            os.kill(os.getpid(), signal.SIGINT)
            threading.Event().wait(0.2)

        class Report(BlockingBatcher):
            def end_at_exit(self):
                super().end_at_exit()
                self.report.verify()
                print(self.report.name, self.report.tally)

        one = Report(lambda batch: None, name="one").start()
        two = Report(interrupting, name="two").start()
        one.add(1)
        two.add(1)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert "one 1 accepted: 1 delivered" in done.stdout, done.stderr
    assert "two 1 accepted: 1 " in done.stdout, done.stderr


STORM = """
    import signal, sys, random, time
    from sluicegate import BlockingBatcher, ItemFailed, Limits

    seed, overflow = int(sys.argv[1]), sys.argv[2]
    applied = []

    async def write(batch):
        applied.extend(batch)

    storm = random.Random(seed)
    report = None

    def strike(*_):
        if report is None:  # else it strikes behind the loop
            raise KeyboardInterrupt

    limits = Limits(max_items=4, max_pending_items=16, max_delay=0.001)
    batcher = BlockingBatcher(write, limits=limits, overflow=overflow).start()
    signal.signal(signal.SIGALRM, strike)
    strikes = number = 0

    def work():
        global number
        until = time.monotonic() + 0.05  # a strike may be lost in a finalizer
        while time.monotonic() < until:
            number += 1
            match number % 5:
                case 0: batcher.try_add(number)
                case 1: batcher.submit(number).result(10)
                case 2: batcher.flush(timeout=10)
                case 3: batcher.tally()
                case _: batcher.add(number, timeout=10)

    while report is None:
        try:
            signal.setitimer(signal.ITIMER_REAL, storm.uniform(2e-5, 5e-4))
            if strikes < 60:
                work()
                continue
            signal.setitimer(signal.ITIMER_REAL, storm.uniform(2e-5, 5e-4) if strikes % 9 else 0)
            report = batcher.shutdown(10)
        except KeyboardInterrupt:
            strikes += 1
        except ItemFailed:
            pass
    signal.setitimer(signal.ITIMER_REAL, 0)
    report.verify()
    assert report.tally.delivered <= len(applied) <= report.tally.delivered + report.tally.unknown, (report, len(applied))
    assert len(applied) == len(set(applied))
    print("exact", strikes >= 60, report)
"""


@pytest.mark.parametrize(
    ("seed", "overflow"),
    [
        (1, "block"),
        pytest.param(2, "drop_newest", marks=pytest.mark.long),
        pytest.param(3, "drop_oldest", marks=pytest.mark.long),
    ],
)
def test_a_storm_of_interrupts_leaves_no_call_stuck_and_no_item_uncounted(
    seed: int, overflow: str
) -> None:
    """A timer signal raises `KeyboardInterrupt` in the main thread thousands of times a second, at
    any line.
    """
    program = [sys.executable, "-c", textwrap.dedent(STORM), str(seed), overflow]
    done = subprocess.run(program, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.startswith("exact True"), done.stdout + done.stderr
    assert done.returncode == 0
