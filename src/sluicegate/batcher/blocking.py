"""A batcher for threads: a `Batcher` on its own loop, and an inbox that is part of its ledger.

The fast path is an append under a lock, and a wake-up of the loop unless one is pending. The slow
path, for items that do not fit, is the batcher's own `add` on the loop, with its waiting, overflow
policies and errors. Later threads do not overtake producers that wait there.
"""

from __future__ import annotations

import logging
import math
import sys
import threading
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from .._core import checks
from .._core.errors import BatcherBroken, ClosedError, ConfigError, DeliverTimeout
from .._core.keywords import takes
from .._core.outcome import Tally
from .._core.public import publish
from .._core.runtime import process_fork
from .._core.runtime.loop_thread import LoopThread, end_at_exit, forget_at_exit
from .._core.runtime.loops import refuse_in_a_loop, running_loop
from .._core.runtime.run import batcher_ended
from .inbox import InboxBatcher
from .item_mistakes import several
from .log import own_context
from .receipt import BlockingReceipt
from .report import FlushReport, ShutdownReport
from .setup import BatcherOptions, checked_setup

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable
    from datetime import timedelta
    from types import TracebackType
    from typing import Self, Unpack

    from .._core.outcome import Outcome
    from .._core.sink import SinkLike
    from .inbox import Receipts
    from .limits import Limits
    from .report import Stats


T = TypeVar("T")
R = TypeVar("R")

INSTEAD = "use a Batcher there, or try_add()"

SLACK = 2.0
"""Seconds after a shutdown's deadline before a silent loop counts as stuck."""


class BlockingBatcher(Generic[T]):
    """A `Batcher` for programs with threads and no event loop; it has its own thread with a loop.

    Use it as `with BlockingBatcher(sink) as batcher:` and share it among any number of threads; or
    call `start()`, and it is shut down when the interpreter exits. Leaving the block drains it,
    stores the report in `report`, and raises `DrainTimeout` like a `Batcher`. Calls block where
    those of a `Batcher` suspend, and raise the same errors, in the calling thread. In a thread with
    a running event loop, which they would block, they raise `ConfigError` instead; only `try_add`
    works there.

    In a forked child it starts empty, with its own thread and tally, at the first call that needs
    them. Items that are pending at the fork belong to the parent.

    Args:
        sink: a sink, or a function of a batch; opened and called on the batcher's loop.
        limits: sizes, times and workers; see `Limits`.
        name: appears in logs, metrics and reports.
        overflow: the policy for a full ledger; default `"block"`; see `Batcher`.
        oversize: the policy for an item larger than `max_bytes`. `"alone"` (default) writes it
            alone in a batch, `"reject"` makes `add` raise `ItemTooLarge`, and `"dead_letter"` sends
            it to the dead letters without a write (the stack must have a `DeadLetter`).
        size_of: measures an item in bytes, in the thread that adds it; needed as in `Batcher`.
        key: a function from an item to its key, called in the thread that adds it; see `Batcher`.
        on_key_failure: the policy for later items of a key after one failed for good; see
            `Batcher`.
        max_parked_items: the maximum of parked items per key; see `Batcher`.
        tenant: a function from an item to its tenant, called in the thread that adds it; see
            `Batcher`.
        tenants: their weights; see `Tenants`. Caps per tenant are refused: items in the inbox have
            no tenant yet.
        on_failure: the handler for items that end rejected or unknown; see `Batcher`. A function is
            called on the batcher's thread.
        shutdown_deadline: total seconds for the shutdown when the block is left; default 25.
        last_resort: a sink for items that a shutdown could not send; see `Batcher`.
        open: `"eager"` (default) or `"lazy"`: whether `start` waits until the sink is open; see
            `Batcher`.
        open_timeout: seconds until the opening fails; see `Batcher`.
        adaptive: adapt concurrency and batch size below the limits; see `Batcher`.
        observers: observers of this batcher, called on its thread.
        clock: the time source; the batcher's own loop by default.

    Raises:
        ConfigError: a bad argument, naming it, its value and the rule. Nothing has been started.

    Examples:
        >>> from sluicegate import BlockingBatcher
        >>> from sluicegate.sinks import MemorySink
        >>> with BlockingBatcher(MemorySink()) as batcher:
        ...     batcher.add({"id": 1})
        ...     receipt = batcher.submit({"id": 2})
        ...     print(receipt.result(timeout=10).value)
        delivered
    """

    @takes(BatcherOptions, checked_setup)
    def __init__(self, sink: SinkLike[T], **options: Unpack[BatcherOptions[T]]) -> None:
        setup = checked_setup(sink, **options)
        self._make: Callable[[Callable[[], object]], InboxBatcher[T]] = partial(InboxBatcher, setup)
        self._is_open = False
        self._reset()

    def _reset(self) -> None:
        self._changing = threading.Lock()
        self._renew()
        setup = self._run.batcher.setup
        self._needs_entries = setup.sized or setup.orders_itself
        spool = setup.spool
        self._adds_stored = spool is not None and spool.adds_stored

    def _renew(self) -> None:
        self._run = ThreadRun(self._make)
        self._inbox = self._run.batcher.inbox
        self.report: ShutdownReport[T] | None = None
        """The report of the last shutdown; `None` before."""

    # -- opening and closing -----------------------------------------------------------------------

    def start(self) -> Self:
        """Start the thread, open the sink, and return the batcher.

        Blocks until the sink is open, unless it is opened lazily. The interpreter's exit shuts the
        batcher down at the latest. If the opening fails, raises its error, and nothing runs; raises
        `ConfigError` if the batcher is already open, and in a process that gevent has patched.
        """
        process_fork.check()
        refuse_in_a_loop("start()", "use a Batcher there")
        _refuse_gevent(self.name)
        with self._changing:
            if self._is_open and self._run.has_thread:  # in a forked child no thread runs
                message = f"batcher {self.name!r} is open; start it once, and share the object"
                raise ConfigError(message)
            if self.report is not None:
                self._renew()
            self._start_thread()
        return self

    def _start_thread(self) -> None:
        try:
            self._run.start()
            process_fork.watch(self)
            end_at_exit(self)
            self._is_open = True
        except BaseException:
            self._run.abandon()
            forget_at_exit(self)
            raise

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        was_shut_down = self.report is not None  # shut down inside the block, which had the report
        report = self.shutdown()
        if error is None and not was_shut_down:
            report.raise_if_incomplete()
        elif not report.complete and error is not None and not was_shut_down:
            error.add_note(str(report))

    def shutdown(
        self, deadline: float | timedelta | None = None, *, admit_waiting: bool = False
    ) -> ShutdownReport[T]:
        """Stop accepting, write all items, close the sink, end the thread; return the report.

        `deadline` bounds it, in seconds (default `shutdown_deadline`). Any number of threads may
        call it: one shutdown runs, all get its report, and the earliest deadline wins. Threads that
        wait for room get `ClosedError`, or with `admit_waiting` are admitted as room becomes free.
        It does not raise at the deadline; see `report.complete`. Blocks until the shutdown has
        ended. Raises `BatcherBroken` if the loop has not responded 2 s after the deadline because a
        sink blocks it.
        """
        process_fork.check()
        default = self._run.batcher.setup.shutdown_deadline
        seconds = (
            default
            if deadline is None
            else checks.seconds("deadline", deadline, zero=True, usual=checks.LONG_TIMEOUT)
        )
        if self.report is not None:
            return self.report
        refuse_in_a_loop("shutdown()", "call it from another thread")
        self._check_open()
        try:
            report = self._run.shutdown(seconds, admit_waiting=admit_waiting)
        except BatcherBroken:
            forget_at_exit(self)
            raise
        self.report, self._is_open = report, False
        forget_at_exit(self)
        batcher_ended(self, report)
        return report

    def end_at_exit(self) -> None:
        """Shut down within the default deadline; called at the interpreter's exit."""
        process_fork.check()
        if self._run.has_thread and self._is_open:
            self.shutdown()

    def after_fork(self) -> None:
        """Reset in a forked child; the next call that needs the thread starts a new one."""
        process_fork.leave_to_parent(self._run)
        self._reset()

    # -- items -------------------------------------------------------------------------------------

    def add(self, item: T, *, timeout: float | timedelta | None = None) -> None:
        """Accept `item` in memory, or with a spool on disk; block while the ledger is full.

        `timeout` in seconds (default: none) bounds the wait. Raises `AddTimeout` when it expires,
        `ClosedError` once the batcher is closed, `ItemTooLarge` for an item that can never fit; in
        each case, and if the wait is interrupted, the item was not accepted.
        """
        process_fork.check()
        if running_loop() is not None:
            refuse_in_a_loop("add()", INSTEAD)
        seconds = None if timeout is None else _seconds(timeout)
        if self._adds_stored:
            self._add_stored((item,), seconds)
        elif self._needs_entries or not self._inbox.put(item):
            self._accept((item,), (None,), seconds)

    def _add_stored(self, items: tuple[T, ...], seconds: float | None) -> None:
        """Add items, and block until all are in the spool."""
        run = self._running()
        ends = math.inf if seconds is None else run.now() + seconds
        receipts = tuple([BlockingReceipt() for _ in items])
        self._accept(items, receipts, seconds)
        for receipt in receipts:
            receipt.settled(None if seconds is None else max(0.0, ends - run.now()))
        for receipt in receipts:
            receipt.result()

    def try_add(self, item: T) -> bool:
        """Accept `item` if there is room now; from any thread, including one with an event loop.

        Returns false if the ledger is full, a producer waits for room, or the batcher is not open;
        with `overflow="drop_newest"` the item then counts as dropped, otherwise as refused. With
        `"drop_oldest"` it replaces older ones. It waits neither for room nor for the loop, so a
        signal handler or a finalizer may call it.
        """
        process_fork.check()
        if not self._needs_entries and self._inbox.put(item):
            return True
        return self._try_again(item)

    def _try_again(self, item: T) -> bool:
        if self._is_open and not self._run.has_thread:
            self._running()  # a forked child
        run = self._run
        batcher = run.batcher
        entries = batcher.entries((item,), (None,))
        if entries is not None:
            if self._inbox.put_all(entries):
                return True
            setup = batcher.setup
            drops = setup.drops and run.has_thread
            if drops and self._inbox.announce(item, setup.limits.max_items):
                return setup.overflow == "drop_oldest"
        self._inbox.refuse(1)
        return False

    def add_many(self, items: Iterable[T], *, timeout: float | timedelta | None = None) -> None:
        """Accept all `items` in order, or none; block while they do not fit. Raises the same errors
        as `add`.
        """
        process_fork.check()
        refuse_in_a_loop("add_many()", INSTEAD)
        together = tuple(several(items))
        if together and self._adds_stored:
            self._add_stored(together, _seconds(timeout))
        elif together:
            self._accept(together, (None,) * len(together), _seconds(timeout))

    def submit(self, item: T, *, timeout: float | timedelta | None = None) -> BlockingReceipt:
        """Like `add`; return a receipt: `result()` waits until the item is stored, or raises
        `ItemFailed`.
        """
        process_fork.check()
        refuse_in_a_loop("submit()", INSTEAD)
        receipt = BlockingReceipt()
        self._accept((item,), (receipt,), _seconds(timeout))
        return receipt

    def deliver(self, item: T, *, timeout: float | timedelta | None = None) -> Outcome:
        """Add `item`, block until it is stored, and return `delivered`, `duplicate` or `spooled`.

        Raises `ItemFailed` for every other outcome: a dead-lettered item is safe, but not stored.
        `timeout` in seconds (default: none) bounds the whole wait. It raises `AddTimeout` while the
        item waits for room: it was not accepted. Later it raises `DeliverTimeout` with the
        `receipt`: the item is accepted and still written, so do not send it again. Otherwise raises
        like `add`. After an interrupt the item may have been accepted, and is then written all the
        same.
        """
        process_fork.check()
        refuse_in_a_loop("deliver()", INSTEAD)
        seconds = _seconds(timeout)
        if seconds is None:
            return self.submit(item).result()
        run = self._running()
        ends = run.now() + seconds
        receipt = self.submit(item, timeout=seconds)
        try:
            return receipt.result(max(0.0, ends - run.now()))
        except DeliverTimeout:
            raise DeliverTimeout(receipt, seconds) from None

    def _accept(self, items: tuple[T, ...], receipts: Receipts, seconds: float | None) -> None:
        entries = self._run.batcher.entries(items, receipts)
        if entries is None or not self._inbox.put_all(entries):
            run = self._running()
            run.wait(lambda: run.batcher.let_in(items, receipts, seconds))

    def _running(self) -> ThreadRun[T]:
        """Return the run, with a new thread in a forked child. Raises `ClosedError` while not open."""
        with self._changing:
            self._check_open()
            if not self._run.has_thread:
                self._start_thread()
            return self._run

    def _check_open(self) -> None:
        if not self._is_open:
            unopened = "not open: use `with batcher:`, or start()"
            state = unopened if self.report is None else "closed and takes no more items"
            raise ClosedError(f"batcher {self.name!r} is {state}")

    # -- state ------------------------------------------------------------------------------------

    def flush(self, timeout: float | timedelta | None = None) -> FlushReport:
        """Write the items accepted before this call, and only those; wait for their outcomes.

        `timeout` in seconds (default: none) bounds the wait; the report then has the number of
        remaining items. On a closed batcher it returns immediately. Raises `BatcherBroken` on a
        broken batcher, and `ClosedError` on one that was never open.
        """
        process_fork.check()
        refuse_in_a_loop("flush()", "use a Batcher there")
        if self.report is not None:
            return FlushReport(remaining=0, outcomes={})
        seconds, run = _seconds(timeout), self._running()
        return run.wait(lambda: run.batcher.flush_all(seconds))

    def resume(self, key: object, *, tenant: object = ...) -> int:
        """Release a key that is paused or has failed; see `Batcher.resume`."""
        process_fork.check()
        run = self._run
        return run.ask(lambda: run.batcher.resume(key, tenant=tenant))

    def unpark(self, key: object, *, tenant: object = ...) -> int:
        """Release a parked key; see `Batcher.unpark`."""
        process_fork.check()
        run = self._run
        return run.ask(lambda: run.batcher.unpark(key, tenant=tenant))

    def tally(self) -> Tally:
        """Return the counts of all outcomes and of the pending items, at one moment."""
        process_fork.check()
        run = self._run
        return run.ask(run.batcher.full_tally)

    def stats(self) -> Stats:
        """Return a snapshot, also before opening and after closing. Blocks for one turn of the
        loop.
        """
        process_fork.check()
        run = self._run
        return run.ask(run.batcher.full_stats)

    @property
    def name(self) -> str:
        """The batcher's name."""
        return self._run.batcher.name

    @property
    def limits(self) -> Limits:
        """The limits in force."""
        return self._run.batcher.limits

    def __repr__(self) -> str:
        state = "open" if self._is_open else "new" if self.report is None else "closed"
        return f"BlockingBatcher(name={self.name!r}, state={state!r})"


def _seconds(timeout: float | timedelta | None) -> float | None:
    """Check a timeout in the thread of the caller, at whose line it is warned of."""
    return checks.optional_seconds("timeout", timeout, zero=True, usual=checks.LONG_TIMEOUT)


def _refuse_gevent(name: str) -> None:
    """Raise `ConfigError` if gevent has replaced threads by greenlets of one thread."""
    patcher = sys.modules.get("gevent.monkey")
    if patcher is not None and patcher.is_module_patched("threading"):
        raise ConfigError(
            f"BlockingBatcher {name!r} cannot run under gevent: monkey.patch_all() has replaced "
            "threads by greenlets, and its event loop would block all of them; use workers with "
            "threads (gunicorn -k gthread, celery --pool threads or prefork)"
        )


logger = logging.getLogger("sluicegate.batcher")


class ThreadRun(Generic[T]):
    """A batcher with an inbox, and its thread. `make` builds the batcher."""

    def __init__(self, make: Callable[[Callable[[], object]], InboxBatcher[T]]) -> None:
        self.batcher = make(self._wake)
        self._thread: LoopThread | None = None

    def _wake(self) -> None:
        if self._thread is not None:
            self._thread.call_soon(self.batcher.take_in)

    @property
    def has_thread(self) -> bool:
        """Whether a thread has been started, and not abandoned."""
        return self._thread is not None

    def start(self) -> None:
        """Start the thread and open the batcher on it. If this is interrupted, call `abandon`."""
        batcher = self.batcher
        thread = LoopThread(
            f"batcher {batcher.name!r}", logger=logger, context=own_context(), on_end=batcher.shut
        )
        self._thread = (
            thread  # before it lends room, since a thread that fills the room wakes this loop
        )
        deadline = batcher.setup.shutdown_deadline
        thread.start(batcher.open, lambda: batcher.shut_down(deadline, admit_waiting=False))

    def abandon(self) -> None:
        """Make the thread shut the batcher down and end; return immediately."""
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.abandon()

    def now(self) -> float:
        """Return the loop's monotonic time. Raises `ClosedError` without a running thread."""
        if self._thread is None:
            raise ClosedError(f"batcher {self.batcher.name!r} has ended")
        return self._thread.loop.time()

    def wait(self, work: Callable[[], Coroutine[Any, Any, R]]) -> R:
        """Run a coroutine on the loop, and block. Raises `ClosedError` without a running thread."""
        if self._thread is None:
            raise ClosedError(f"batcher {self.batcher.name!r} has ended")
        return self._thread.ask(work)

    def ask(self, question: Callable[[], R]) -> R:
        """Call a function on the loop, or directly if this is the loop's thread or none runs."""
        thread = self._thread
        if thread is None or thread.is_this:
            return question()
        try:
            return thread.call(question)
        except ClosedError:  # it has just ended
            return question()

    def shutdown(self, seconds: float, *, admit_waiting: bool) -> ShutdownReport[T]:
        """Shut the batcher down, end the thread. Raises `BatcherBroken` if its loop is stuck."""
        thread, batcher = self._thread, self.batcher
        if thread is None:  # a forked child that has not used its batcher
            name = batcher.name
            return ShutdownReport(name=name, tally=Tally(), seconds=0.0, unsent=(), unknown=())
        try:
            report = thread.ask(
                lambda: batcher.shut_down(seconds, admit_waiting=admit_waiting), seconds + SLACK
            )
        except TimeoutError:
            message = (
                f"the loop of batcher {batcher.name!r} is stuck: a call blocks it; a sink that "
                "blocks must be a plain function, which runs in its own thread"
            )
            raise BatcherBroken(message) from None
        except ClosedError:
            if batcher.report is None:
                raise
            report = batcher.report  # another thread's shutdown has just ended
        thread.end()
        return report


publish("sluicegate", BlockingBatcher)
