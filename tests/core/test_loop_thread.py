"""An event loop on its own thread. The tests of `BlockingBatcher` cover signals that interrupt
`ask`.

White box: the thread without a batcher.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import threading
from typing import TYPE_CHECKING

import pytest

from sluicegate import ClosedError
from sluicegate._core.runtime.loop_thread import LoopThread

if TYPE_CHECKING:
    from collections.abc import Iterator

LOGGER = logging.getLogger("tests.loop_thread")
MARK: contextvars.ContextVar[str] = contextvars.ContextVar("mark", default="none")


@pytest.fixture
def thread() -> Iterator[LoopThread]:
    thread = LoopThread("worker", logger=LOGGER)
    thread.start()
    yield thread
    thread.end()


async def mark() -> str:
    return MARK.get()


def test_calls_and_futures_run_on_the_loop(thread: LoopThread) -> None:
    async def here() -> tuple[bool, bool]:
        return thread.is_this, asyncio.get_running_loop() is thread.loop

    assert thread.ask(here) == (True, True)
    assert thread.spawn(here()).result(5) == (True, True)
    assert thread.call(lambda: thread.is_this)
    assert not thread.is_this


def test_futures_run_in_the_context_of_their_caller_and_calls_in_the_threads() -> None:
    context = contextvars.Context()
    context.run(MARK.set, "thread")
    thread = LoopThread("worker", logger=LOGGER, context=context)
    thread.start()
    token = MARK.set("caller")
    try:
        assert thread.spawn(mark()).result(5) == "caller"
        assert thread.ask(mark) == "thread"
    finally:
        MARK.reset(token)
        thread.end()


def test_cancelling_a_future_cancels_its_task(thread: LoopThread) -> None:
    begun, cancelled = threading.Event(), threading.Event()

    async def work() -> None:
        begun.set()
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            cancelled.set()

    future = thread.spawn(work())
    assert begun.wait(5)
    assert future.cancel()
    assert cancelled.wait(5)


def test_the_end_waits_for_calls_and_cancels_futures() -> None:
    ended = threading.Event()
    thread = LoopThread("worker", logger=LOGGER, on_end=ended.set)
    thread.start()
    begun = threading.Semaphore(0)

    async def endless() -> None:
        begun.release()
        await asyncio.get_running_loop().create_future()

    async def short() -> str:
        begun.release()
        for _ in range(100):
            await asyncio.sleep(0)  # the clock is not used here
        return "done"

    future = thread.spawn(endless())
    answers: list[str] = []
    asking = threading.Thread(target=lambda: answers.append(thread.ask(short)))
    asking.start()
    begun.acquire()
    begun.acquire()
    thread.end(5)
    asking.join(5)
    assert answers == ["done"]
    assert future.cancelled()
    assert ended.is_set()


def test_an_ended_thread_refuses_work() -> None:
    thread = LoopThread("worker", logger=LOGGER)
    thread.start()
    thread.end()
    thread.end()
    with pytest.raises(ClosedError, match="worker has ended"):
        thread.ask(mark)
    with pytest.raises(ClosedError, match="worker has ended"):
        thread.spawn(mark())
    with pytest.raises(ClosedError, match="worker has ended"):
        _ = thread.loop
    assert not thread.call_soon(lambda: None)


def test_a_failed_opening_ends_the_thread() -> None:
    async def opening() -> None:
        message = "no"
        raise ValueError(message)

    thread = LoopThread("worker", logger=LOGGER)
    with pytest.raises(ValueError, match="no"):
        thread.start(opening)
    assert not thread.call_soon(lambda: None)


def test_an_exit_is_logged_and_ends_nothing(
    thread: LoopThread, caplog: pytest.LogCaptureFixture
) -> None:
    async def leave() -> None:
        raise SystemExit(3)

    with pytest.raises(SystemExit):
        thread.ask(leave)
    assert thread.ask(mark) == "none"
    (record,) = caplog.records
    assert record.name == LOGGER.name
    assert record.getMessage().startswith("worker: SystemExit was raised on its thread")
