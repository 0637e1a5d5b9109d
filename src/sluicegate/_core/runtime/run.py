"""Running a program that drains on a signal, and fails if something was lost.

1. A batcher is judged by its tally: no item may have ended rejected, unsent or unknown, except for
   the outcomes that `run(accept=)` names.
2. A consumer is judged by the `complete` of its report.
3. A batcher that a consumer feeds (a pipe, or `forward_to`) is no different: it fails the run only
   if its shutdown cut off a write. The source delivers the other failed items again, or the
   consumer has handled them.

It does not matter how `main` ends: a program may swallow errors, take the report of a shutdown, or
be cancelled by a signal. So each report is noted in the context that tasks, groups and threads
inherit.
"""

from __future__ import annotations

import asyncio
import logging
import signal
from contextlib import suppress
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar
from weakref import WeakSet

from .. import checks
from ..errors import ConfigError, DrainTimeout, ItemsFailed
from ..outcome import Outcome
from .loops import Exit, refuse_in_a_loop

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Coroutine
    from datetime import timedelta

    from ..outcome import Tally


R = TypeVar("R")

logger = logging.getLogger("sluicegate.run")

FAILURES = (Outcome.REJECTED, Outcome.UNSENT, Outcome.UNKNOWN)
"""Outcomes that may be judged as failures of a run."""
MOST_REPORTS = 20
"""Maximum number of kept reports of each kind; the first ones."""


def run(
    main: Coroutine[Any, Any, R],
    *,
    accept: tuple[Literal["rejected", "unsent", "unknown"], ...] = (),
    patience: float | timedelta = 1.0,
) -> R | None:
    """Run `main` on a new event loop; SIGTERM and SIGINT make its batchers and consumers drain.

    A signal cancels `main`; a second signal cancels it again, which ends shutdowns immediately. A
    task that raises `SystemExit` or `KeyboardInterrupt` also cancels `main`, and `run` raises the
    exception at the end. Returns the result of `main`, or `None` if a signal ended it. Unlike
    `asyncio.run`, it ends even if a task swallows its cancellation: tasks that still run after
    `patience` seconds are logged and abandoned. Blocks the calling thread, which must be the main
    thread to catch signals.

    It does not return, and the exit code is 1, if something was lost, whatever `main` returned or
    swallowed, even if it ended with `sys.exit(0)`:

    - if a batcher or consumer did not drain, it raises `DrainTimeout` with the report of the first;
    - if items of a batcher ended rejected, unsent or unknown, it raises `ItemsFailed`. `accept`
      names outcomes that are expected, as in `accept=("rejected",)`.

    A consumer, a pipe and a flow are judged by the `complete` of their own report, not by the tally
    of a batcher that they feed. A batcher that was not shut down is not judged. Raises
    `ConfigError` for anything other than a coroutine, for other names in `accept`, and in a thread
    with a running event loop.
    """
    if not asyncio.iscoroutine(main):
        rule = "must be a coroutine: call the async function, as in run(main())"
        raise checks.bad("main", main, rule)
    try:
        ends = RunEnds(accept)
        seconds = checks.seconds("patience", patience, zero=True, usual=checks.LONG_TIMEOUT)
        refuse_in_a_loop("run()", "await the coroutine there")
    except ConfigError:
        main.close()
        raise
    try:
        result = run_on_new_loop(_with_signals(main, ends), seconds)
    except SystemExit as asked:
        if not asked.code and (error := ends.error()) is not None:
            raise error from None
        raise
    if (error := ends.error()) is not None:
        raise error
    return result


def run_on_new_loop(
    main: Coroutine[Any, Any, R],
    patience: float,
    *,
    ignored: Callable[[BaseException], object] | None = None,
) -> R:
    """Run `main` on a new event loop; then cancel other tasks, and wait `patience` s for them.

    A `SystemExit` or `KeyboardInterrupt` of a task or callback also ends `main`, and is raised
    here. If `ignored` is given, it is called with the exception instead, and the loop continues.
    """
    loop = asyncio.new_event_loop()
    try:
        asyncio.set_event_loop(loop)
        return _completed(loop, main, ignored)
    finally:
        try:
            # ignores exits: the first one is already being raised
            _completed(loop, _cancel_rest(patience), lambda _: None)
            loop.run_until_complete(loop.shutdown_asyncgens())
        finally:
            asyncio.set_event_loop(None)
            loop.close()


def _completed(
    loop: asyncio.AbstractEventLoop,
    main: Coroutine[Any, Any, R],
    ignored: Callable[[BaseException], object] | None,
) -> R:
    task = loop.create_task(main)
    while True:
        try:
            return loop.run_until_complete(task)
        except Exit as error:  # from a task or a callback: the stopped loop can continue
            if ignored is None or task.done():
                raise
            ignored(error)


async def _with_signals(main: Coroutine[Any, Any, R], ends: RunEnds) -> R | None:
    loop = asyncio.get_running_loop()
    ends.collect()  # before the task copies the context
    task = loop.create_task(main, name="sluicegate main")
    received: list[str] = []

    def on_signal(name: str) -> None:
        received.append(name)
        logger.info("%s: %s", name, "draining" if len(received) == 1 else "ending now")
        task.cancel()

    caught = [sign for sign in (signal.SIGTERM, signal.SIGINT) if _catch(loop, sign, on_signal)]
    try:
        return await task
    except asyncio.CancelledError:
        if not received:
            raise
        return None
    finally:
        for sign in caught:
            loop.remove_signal_handler(sign)


def _catch(loop: asyncio.AbstractEventLoop, sign: signal.Signals, handler: Any) -> bool:
    try:
        loop.add_signal_handler(sign, handler, sign.name)
    except (NotImplementedError, ValueError, RuntimeError):  # not the main thread, or not supported
        return False
    return True


async def _cancel_rest(patience: float) -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    if not others:
        return
    _, deaf = await asyncio.wait(others, timeout=patience)
    for task in deaf:
        logger.error("%r ignores its cancellation and is left behind", task)


class EndReport(Protocol):
    """The report of the end of a consumer or of a batcher, which `run` judges."""

    @property
    def complete(self) -> bool:
        """Whether everything that was accepted has ended."""
        ...


class BatcherReport(EndReport, Protocol):
    """The report of a batcher."""

    @property
    def name(self) -> str: ...
    @property
    def tally(self) -> Tally: ...
    @property
    def unknown(self) -> Collection[Any]: ...


class RunEnds:
    """The failed ends of one `run`. Raises `ConfigError` for a bad `accept`."""

    def __init__(self, accept: Collection[str]) -> None:
        names = tuple(outcome.value for outcome in FAILURES)
        is_several = isinstance(accept, (tuple, list, set, frozenset))
        if not is_several or any(name not in names for name in accept):
            raise checks.bad("accept", accept, f"must be a tuple of names among {names}")
        self._judged = tuple(outcome for outcome in FAILURES if outcome.value not in accept)
        self._incomplete: list[EndReport] = []
        self._failed: list[BatcherReport] = []
        self._fed: WeakSet[object] = WeakSet()

    def collect(self) -> None:
        """Note the ends in this context, and in its copies."""
        _current.set(self)

    def consumer_feeds(self, batcher: object) -> None:
        with suppress(TypeError):  # an object of the program that cannot be referenced weakly
            self._fed.add(batcher)

    def consumer_ended(self, report: EndReport) -> None:
        if not report.complete:
            self._keep(self._incomplete, report)

    def batcher_ended(self, batcher: object, report: BatcherReport, *, is_fed: bool) -> None:
        if is_fed or batcher in self._fed:
            if report.unknown:
                self._keep(self._incomplete, report)
        elif any(report.tally.of(outcome) for outcome in self._judged):
            if report.complete:
                self._keep(self._failed, report)
            else:
                self._keep(self._incomplete, report)

    @staticmethod
    def _keep(reports: list[Any], report: object) -> None:
        if len(reports) < MOST_REPORTS:
            reports.append(report)

    def error(self) -> DrainTimeout | ItemsFailed | None:
        """Return the error for these ends: the first incomplete report, or the failed items."""
        if self._incomplete:
            error = DrainTimeout(self._incomplete[0])
            for report in (*self._incomplete[1:], *self._failed):
                error.add_note(str(report))
            return error
        return ItemsFailed(self._failed, self._judged) if self._failed else None


_current: ContextVar[RunEnds | None] = ContextVar("sluicegate_run_ends", default=None)
_opened: ContextVar[WeakSet[object] | None] = ContextVar("sluicegate_opened", default=None)


def collect_opened() -> WeakSet[object]:
    """Note the consumers and batchers that are opened in this context, and in its copies."""
    noted: WeakSet[object] = WeakSet()
    _opened.set(noted)
    return noted


def note_opened(part: object) -> None:
    """Note that a consumer is being opened, or that a batcher is open."""
    if (noted := _opened.get()) is not None:
        noted.add(part)


def consumer_feeds(batcher: object) -> None:
    """Leave the failed items of this batcher to the consumer that feeds it."""
    if (ends := _current.get()) is not None:
        ends.consumer_feeds(batcher)


def consumer_ended(report: EndReport) -> None:
    """Note the end of a consumer."""
    if (ends := _current.get()) is not None:
        ends.consumer_ended(report)


def batcher_ended(batcher: object, report: BatcherReport, *, is_fed: bool = False) -> None:
    """Note the end of a batcher; `is_fed`: a consumer answers for its items."""
    if (ends := _current.get()) is not None:
        ends.batcher_ended(batcher, report, is_fed=is_fed)
