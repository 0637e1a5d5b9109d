"""Running a program that drains on a signal."""

from __future__ import annotations

import asyncio
import logging
import signal
from typing import TYPE_CHECKING, Any, TypeVar

from .. import checks
from ..errors import ConfigError, DrainTimeout
from .exits import Exit
from .incomplete import collect_reports
from .loops import refuse_in_a_loop

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from datetime import timedelta

R = TypeVar("R")

logger = logging.getLogger("penstock.run")


def run(main: Coroutine[Any, Any, R], *, patience: float | timedelta = 1.0) -> R | None:
    """Run `main` on a new event loop; SIGTERM and SIGINT make its batchers and consumers drain.

    A signal cancels `main`; a second signal cancels it again, which ends shutdowns immediately. A
    task that raises `SystemExit` or `KeyboardInterrupt` also cancels `main`, and `run` raises the
    exception at the end. Returns the result of `main`, or `None` if a signal ended it and every
    batcher and consumer drained. If one did not drain, raises `DrainTimeout` with the report of the
    first, so that the exit code is 1, not 0. Unlike `asyncio.run`, it ends even if a task swallows
    its cancellation: tasks that still run after `patience` seconds are logged and abandoned. Blocks
    the calling thread, which must be the main thread to catch signals. Raises `ConfigError` for
    anything other than a coroutine, and in a thread with a running event loop.
    """
    if not asyncio.iscoroutine(main):
        rule = "must be a coroutine: call the async function, as in run(main())"
        raise checks.bad("main", main, rule)
    try:
        seconds = checks.seconds("patience", patience, zero=True, usual=checks.LONG_TIMEOUT)
        refuse_in_a_loop("run()", "await the coroutine there")
    except ConfigError:
        main.close()
        raise
    return run_on_new_loop(_with_signals(main), seconds)


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


async def _with_signals(main: Coroutine[Any, Any, R]) -> R | None:
    loop = asyncio.get_running_loop()
    reports = collect_reports()  # before the task copies the context
    task = loop.create_task(main, name="penstock main")
    received: list[str] = []

    def on_signal(name: str) -> None:
        received.append(name)
        logger.info("%s: %s", name, "draining" if len(received) == 1 else "ending now")
        task.cancel()

    caught = [sign for sign in (signal.SIGTERM, signal.SIGINT) if _catch(loop, sign, on_signal)]
    try:
        result: R | None = await task
    except asyncio.CancelledError:
        if not received:
            raise
        result = None
    finally:
        for sign in caught:
            loop.remove_signal_handler(sign)
    if received and reports:
        raise _not_drained(reports)
    return result


def _not_drained(reports: list[object]) -> DrainTimeout:
    error = DrainTimeout(reports[0])
    for report in reports[1:]:
        error.add_note(str(report))
    return error


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
