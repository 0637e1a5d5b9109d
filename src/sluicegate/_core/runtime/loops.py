"""The event loop that runs in this thread, and its end by `SystemExit` or `KeyboardInterrupt`.

If a callback of the program raises one of these, the current step is finished first, so that counts
stay correct and a shutdown still works. Then the event loop raises the exception, as if from a
task, and `asyncio.run` ends with it. Only the first exit on a loop is raised: a second one would
interrupt `asyncio.run` while it cancels the other tasks, and so the shutdown that the first one has
begun.
"""

from __future__ import annotations

import asyncio
from threading import get_ident
from typing import Protocol, cast
from weakref import WeakSet

from ..errors import ConfigError

running_loop = asyncio._get_running_loop  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
"""Like `asyncio.get_running_loop`, but returns `None` without one, and is much faster."""


class RunsInThread(Protocol):
    """The identity of the thread in which a loop is running; `None` while it is not running.

    asyncio's own loops have this attribute. Comparing it with `get_ident()` shows within a few
    nanoseconds whether the loop runs in this thread; `running_loop` needs a system call for the
    process id.
    """

    @property
    def _thread_id(self) -> int | None: ...


class _OtherLoop:
    """A loop of another library that runs in this thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._thread = get_ident()

    @property
    def _thread_id(self) -> int | None:
        return self._thread if self._loop.is_running() else None


class _NoLoop:
    _thread_id: int | None = None


NO_LOOP: RunsInThread = _NoLoop()


def runs_in_thread(loop: asyncio.AbstractEventLoop) -> RunsInThread:
    """Return the running loop of this thread, or a stand-in if it does not expose its thread."""
    known = cast("RunsInThread", loop)
    if not isinstance(loop, asyncio.BaseEventLoop):
        return _OtherLoop(loop)
    thread = known._thread_id  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
    return known if thread == get_ident() else _OtherLoop(loop)


def refuse_in_a_loop(call: str, instead: str) -> None:
    """Raise `ConfigError` if an event loop runs in this thread, since `call` would block it."""
    if running_loop() is not None:
        raise ConfigError(f"{call} would block the event loop that runs in this thread; {instead}")


Exit = (KeyboardInterrupt, SystemExit)

_ending: WeakSet[asyncio.AbstractEventLoop] = WeakSet()


def is_first_exit() -> bool:
    """Return whether no exit has been raised on the running loop, and note that one is now."""
    loop = asyncio.get_running_loop()
    is_first = loop not in _ending
    _ending.add(loop)
    return is_first


def exit_later(error: BaseException) -> None:
    """End the running loop with `error` after the current step, if it is one of `Exit`."""
    if isinstance(error, Exit) and is_first_exit():
        asyncio.get_running_loop().call_soon(_exit, error)


def _exit(error: BaseException) -> None:
    raise error
