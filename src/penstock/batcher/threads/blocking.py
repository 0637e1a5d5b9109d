"""A batcher for threads: one `Batcher` on a loop of its own, and an inbox that lies inside its
ledger.

The short way in is an append under a lock, and a wake-up of the loop if none is on its way already.
What does not fit takes the long way: the batcher's own `add` on the loop, so that waiting, overflow
policies and errors are the batcher's own. Threads that come later do not overtake those who wait
there.
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Any, Generic, Literal, Never, TypeVar

from ..._core import checks
from ..._core.errors import BatcherBroken, ClosedError, ConfigError, DrainTimeout
from ..._core.runtime import at_exit, process_fork
from ..._core.runtime.loop_thread import LoopThread
from ..._core.runtime.loops import refuse_in_a_loop, running_loop
from ..._core.runtime.own_context import own_context
from ..._core.tally import Tally
from ..arguments import refuse_misplaced
from ..receipt import BlockingReceipt
from ..report import FlushReport, ShutdownReport
from .inbox_batcher import InboxBatcher

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from datetime import timedelta
    from types import TracebackType
    from typing import Self

    from ..._core.clock import Clock
    from ..._core.observer import Observer
    from ..._core.order.parking import OnKeyFailure
    from ..._core.outcome import Outcome
    from ..._core.sink import SinkLike
    from ..adaptive.adaptive import Adaptive
    from ..batcher import Overflow, Oversize
    from ..dispatch import FailureHandler
    from ..limits import Limits
    from ..report import Stats
    from ..tenancy import Tenants

T = TypeVar("T")
R = TypeVar("R")

logger = logging.getLogger("penstock.batcher")

INSTEAD = "use a Batcher there, or try_add()"
SLACK = 2.0
"""Seconds that a loop gets beyond a shutdown's deadline to say how it ended, before it counts as
stuck.
"""


class BlockingBatcher(Generic[T]):
    """A `Batcher` for programs with threads and no event loop of their own: it runs on a loop in a
    thread of its own.

    Use it as `with BlockingBatcher(sink) as batcher:` and share it among any number of threads; or
    call `start()`, and it is shut down when the interpreter exits. Leaving the block drains it,
    keeps the report in `report`, and raises `DrainTimeout` as a `Batcher` does. Calls block, and
    raise in the calling thread, as a `Batcher`'s calls suspend and raise. Where an event loop runs
    in the calling thread, they raise `ConfigError` instead, since waiting would stop that loop;
    only `try_add` may be called there.

    In a forked child it starts empty, with a thread and a tally of its own, at the first call that
    needs them. What was inside at the fork belongs to the parent.

    Args:
        sink: a sink, or a function of a batch; it is opened and called on the batcher's loop.
        limits: sizes, times and workers; see `Limits`.
        name: appears in logs, metrics and reports.
        overflow: what happens with the ledger full; see `Batcher`.
        oversize: an item larger than `max_bytes` goes `"alone"` in a batch, or `add` raises
            `ItemTooLarge` (`"reject"`), or it goes to the dead letters without having been tried
            (`"dead_letter"`; the stack must have a `DeadLetter`).
        size_of: measures an item in bytes, in the thread that adds it; needed as in `Batcher`.
        key: a function from an item to its key, called in the thread that adds it; see `Batcher`.
        on_key_failure: what becomes of a key's later items when one has failed for good; see
            `Batcher`.
        max_parked_items: how many items of a key are parked at most; see `Batcher`.
        tenant: a function from an item to its tenant, called in the thread that adds it; see
            `Batcher`.
        tenants: their weights; see `Tenants`. Caps per tenant are refused here: what threads hand
            in has no tenant yet.
        on_failure: what to do with items that end rejected or unknown; see `Batcher`. A function is
            called on the batcher's thread.
        shutdown_deadline: seconds that leaving the block may take, everything included.
        last_resort: a sink for what a shutdown could not send; see `Batcher`.
        adaptive: let the batcher find its concurrency and batch size below the limits; see
            `Batcher`.
        observers: watchers of this batcher, called on its thread.
        clock: where the time comes from; the batcher's own loop by default.

    Raises:
        ConfigError: a bad argument, naming it, its value and the rule. Nothing has been started.
    """

    def __init__(
        self,
        sink: SinkLike[T],
        *,
        limits: Limits | None = None,
        name: str = "batcher",
        overflow: Overflow = "block",
        oversize: Oversize = "alone",
        size_of: Callable[[T], int] | None = None,
        key: Callable[[T], object] | None = None,
        on_key_failure: OnKeyFailure = "skip",
        max_parked_items: int | None = None,
        tenant: Callable[[T], object] | None = None,
        tenants: Tenants | None = None,
        on_failure: Literal["log", "crash"] | FailureHandler = "log",
        shutdown_deadline: float | timedelta = 25.0,
        last_resort: SinkLike[T] | None = None,
        adaptive: Adaptive | None = None,
        observers: Iterable[Observer] = (),
        clock: Clock | None = None,
        **misplaced: Never,
    ) -> None:
        refuse_misplaced(BlockingBatcher, misplaced)
        self._make: Callable[[], InboxBatcher[T]] = lambda: InboxBatcher(
            sink,
            wake=self._wake,
            limits=limits,
            name=name,
            overflow=overflow,
            oversize=oversize,
            size_of=size_of,
            key=key,
            on_key_failure=on_key_failure,
            max_parked_items=max_parked_items,
            tenant=tenant,
            tenants=tenants,
            on_failure=on_failure,
            shutdown_deadline=shutdown_deadline,
            last_resort=last_resort,
            adaptive=adaptive,
            observers=observers,
            clock=clock,
        )
        self._is_open = False
        self._fresh()

    def _fresh(self) -> None:
        """Nothing inside, and nothing running."""
        self._batcher = self._make()
        self._inbox = self._batcher.inbox
        self._needs_entries = self._batcher.needs_entries
        self._thread: LoopThread | None = None
        self._changing = threading.Lock()
        self.report: ShutdownReport[T] | None = None
        """The report of the last shutdown; `None` before."""

    # -- opening and closing -----------------------------------------------------------------------

    def start(self) -> Self:
        """Start the thread, open the sink, and return the batcher. Unless it is shut down before,
        that happens at the interpreter's exit.

        Blocks until the sink is open. Raises what opening it raises, and nothing runs then;
        `ConfigError` if the batcher is open already.
        """
        refuse_in_a_loop("start()", "use a Batcher there")
        with self._changing:
            if self._is_open:
                raise ConfigError(
                    f"batcher {self.name!r} is open; start it once, and share the object"
                )
            if self.report is not None:
                self._batcher = self._make()
                self._inbox = self._batcher.inbox
                self.report = None
            self._start_thread()
        return self

    def _start_thread(self) -> LoopThread:
        batcher = self._batcher
        thread = LoopThread(
            f"batcher {self.name!r}",
            logger=logger,
            context=own_context(),
            on_end=batcher.shut,
        )
        self._thread = (
            thread  # before it lends room: whoever uses that has to find the loop to wake
        )
        try:
            thread.start(
                batcher.open, lambda: batcher.shut_down(batcher.deadline, admit_waiting=False)
            )
            process_fork.watch(self)
            at_exit.enter(self)
            self._is_open = True
        except BaseException:
            self._thread = None
            thread.abandon()
            at_exit.leave(self)
            raise
        return thread

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        was_told = (
            self.report is not None
        )  # a shutdown inside the block has handed its report over already
        report = self.shutdown()
        if report.complete or was_told:
            return
        if error is None:
            raise DrainTimeout(report)
        error.add_note(str(report))

    def shutdown(
        self, deadline: float | timedelta | None = None, *, admit_waiting: bool = False
    ) -> ShutdownReport[T]:
        """Stop accepting, write what is inside, close the sink, end the thread; return where every
        item ended, within `deadline` seconds.

        `deadline` defaults to `shutdown_deadline`. Any number of threads may call: there is one
        shutdown, all get its report, and the earliest deadline wins. Threads that wait for room get
        `ClosedError`, or with `admit_waiting` are let in as room comes free. It never raises for
        the deadline; see `report.complete`. Blocks until the shutdown has ended. Raises
        `BatcherBroken` if the loop does not answer 2 s after the deadline, because a sink blocks
        it.
        """
        seconds = (
            self._batcher.deadline
            if deadline is None
            else checks.seconds("deadline", deadline, zero=True)
        )
        if self.report is not None:
            return self.report
        refuse_in_a_loop("shutdown()", "call it from another thread")
        self._check_open()
        thread, batcher = self._thread, self._batcher
        report = (
            _nothing(self.name)
            if thread is None
            else self._shutdown(thread, batcher, seconds, admit_waiting=admit_waiting)
        )
        self.report, self._is_open = report, False
        at_exit.leave(self)
        return report

    def _shutdown(
        self, thread: LoopThread, batcher: InboxBatcher[T], seconds: float, *, admit_waiting: bool
    ) -> ShutdownReport[T]:
        try:
            report = thread.ask(
                lambda: batcher.shut_down(seconds, admit_waiting=admit_waiting), seconds + SLACK
            )
        except TimeoutError:
            message = (
                f"the loop of batcher {self.name!r} is stuck: something blocks it; a "
                "sink that blocks has to be a plain function, which runs in a thread of "
                "its own"
            )
            at_exit.leave(self)
            raise BatcherBroken(message) from None
        except ClosedError:
            if batcher.report is None:
                raise
            report = batcher.report  # another thread's shutdown has just ended
        thread.end()
        return report

    def end_at_exit(self) -> None:
        """Shut down within the default deadline; the interpreter's exit calls it."""
        if self._thread is not None and self._is_open:
            self.shutdown()

    def after_fork(self) -> None:
        """This is a forked child: start anew when somebody needs it."""
        process_fork.leave_to_parent(self._batcher, self._thread)
        self._fresh()

    # -- items -------------------------------------------------------------------------------------

    def add(self, item: T, *, timeout: float | timedelta | None = None) -> None:
        """Accept `item` in memory; block while the ledger is full.

        `timeout` in seconds (default: none) bounds the wait. Raises `AddTimeout` when it ends,
        `ClosedError` once the batcher is closed, `ItemTooLarge` for what can never fit; in each
        case, and when the wait is interrupted, the item was not accepted.
        """
        if running_loop() is not None:
            refuse_in_a_loop("add()", INSTEAD)
        if self._needs_entries or not self._inbox.put(item):
            self._accept((item,), (None,), timeout)

    def try_add(self, item: T) -> bool:
        """Accept `item` if there is room now; may be called anywhere, on an event loop's thread
        too.

        False when the ledger is full, somebody else waits for room, or it is not open; with
        `overflow="drop_newest"` the item then counts as dropped, otherwise as refused. With
        `"drop_oldest"` it takes the place of older ones. Neither waits nor asks the loop, so a
        signal handler or a finalizer may call it.
        """
        if not self._needs_entries and self._inbox.put(item):
            return True
        return self._try_again(item)

    def _try_again(self, item: T) -> bool:
        if self._thread is None and self._is_open:
            self._running()  # a forked child
        batcher, thread = self._batcher, self._thread
        entries = batcher.entries((item,), (None,))
        if entries is not None and self._inbox.put_all(entries):
            return True
        if (
            entries is not None
            and thread is not None
            and batcher.drops
            and self._inbox.announce(item, batcher.limits.max_items)
        ):
            return batcher.makes_room
        self._inbox.refuse(1)
        return False

    def add_many(self, items: Iterable[T], *, timeout: float | timedelta | None = None) -> None:
        """Accept all of `items`, in order and together, or none; block while they do not fit.
        Raises as `add`.
        """
        refuse_in_a_loop("add_many()", INSTEAD)
        together = tuple(items)
        if together:
            self._accept(together, (None,) * len(together), timeout)

    def submit(self, item: T, *, timeout: float | timedelta | None = None) -> BlockingReceipt:
        """As `add`, and return a receipt: its `result()` waits for the item's outcome and returns
        it, or raises `ItemFailed`.
        """
        refuse_in_a_loop("submit()", INSTEAD)
        receipt = BlockingReceipt()
        self._accept((item,), (receipt,), timeout)
        return receipt

    def deliver(self, item: T, *, timeout: float | timedelta | None = None) -> Outcome:
        """Add `item` and wait for its outcome; raises `ItemFailed` unless it is safe somewhere.
        `timeout` bounds the wait for room only.
        """
        return self.submit(item, timeout=timeout).result()

    def _accept(
        self,
        items: tuple[T, ...],
        receipts: tuple[BlockingReceipt | None, ...],
        timeout: float | timedelta | None,
    ) -> None:
        if not self._put(items, receipts):
            thread, batcher = self._running(), self._batcher
            thread.ask(lambda: batcher.let_in(items, receipts, timeout))

    def _put(self, items: tuple[T, ...], receipts: tuple[BlockingReceipt | None, ...]) -> bool:
        entries = self._batcher.entries(items, receipts)
        return entries is not None and self._inbox.put_all(entries)

    def _running(self) -> LoopThread:
        """The loop's thread; a new one in a forked child. Raises `ClosedError` while not open."""
        with self._changing:
            self._check_open()
            return self._thread or self._start_thread()

    def _check_open(self) -> None:
        if not self._is_open:
            state = (
                "not open: use `with batcher:`, or start()"
                if self.report is None
                else "closed and takes no more items"
            )
            raise ClosedError(f"batcher {self.name!r} is {state}")

    # -- asking ------------------------------------------------------------------------------------

    def flush(self, timeout: float | timedelta | None = None) -> FlushReport:
        """Write everything accepted before this call, and wait for its outcomes; items added later
        are not dragged in.

        `timeout` in seconds (default: none) bounds the wait; the report then says how many
        remained. On a closed batcher it returns at once. Raises `BatcherBroken` on a broken one,
        `ClosedError` on one that was never open.
        """
        refuse_in_a_loop("flush()", "use a Batcher there")
        if self.report is not None:
            return FlushReport(remaining=0, outcomes={})
        thread, batcher = self._running(), self._batcher
        return thread.ask(lambda: batcher.flush_all(timeout))

    def resume(self, key: object, *, tenant: object = ...) -> int:
        """Let a key go on that was paused or has failed; see `Batcher.resume`."""
        return self._ask(lambda: self._batcher.resume(key, tenant=tenant))

    def unpark(self, key: object, *, tenant: object = ...) -> int:
        """Let a key go on that was parked; see `Batcher.unpark`."""
        return self._ask(lambda: self._batcher.unpark(key, tenant=tenant))

    def tally(self) -> Tally:
        """The counts of all outcomes and of what is inside, at one moment."""
        return self._ask(self._batcher.full_tally)

    def stats(self) -> Stats:
        """A snapshot of the batcher. Blocks for one turn of its loop; works before opening and
        after closing.
        """
        return self._ask(self._batcher.full_stats)

    def _ask(self, question: Callable[[], R]) -> R:
        thread = self._thread
        if thread is None or thread.is_this or self.report is not None:
            return question()
        try:
            return thread.call(question)
        except ClosedError:
            return question()  # it has just ended

    @property
    def name(self) -> str:
        """The batcher's name."""
        return self._batcher.name

    @property
    def limits(self) -> Limits:
        """The limits in force."""
        return self._batcher.limits

    def _wake(self) -> None:
        if self._thread is not None:
            self._thread.call_soon(self._batcher.take_in)

    def __repr__(self) -> str:
        state = "open" if self._is_open else "new" if self.report is None else "closed"
        return f"BlockingBatcher(name={self.name!r}, state={state!r})"


def _nothing(name: str) -> ShutdownReport[Any]:
    """The report of a forked child that has not used its batcher."""
    return ShutdownReport(name=name, tally=Tally(), seconds=0.0, unsent=(), unknown=())
