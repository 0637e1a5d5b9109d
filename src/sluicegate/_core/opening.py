"""Reference-counted opening and closing of sinks; a closed sink is only a description.

1. The constructor does no I/O and needs no loop. `async with` opens an object and the sinks that it
   wraps, and closes them in reverse order.
2. Entries are counted per object and running loop, under a lock: the first entry opens, the last
   exit closes. So a sink may be part of two stacks, or its own dead-letter target.
3. A failed opening leaves the count at 0 and nothing open. A second live loop is a `ConfigError`
   from the beginning of the first entry to the end of the last exit, even if the loops are
   in different threads; the state of a dead loop is discarded.
4. Run-time state is declared by the class, created on opening, removed on closing, and never
   pickled.
5. In a forked child nothing is open: resources of the parent are not touched, and the description
   may be opened again.
6. An object for a single user, such as a source, is held by `only_user` while it is open.
"""

from __future__ import annotations

import asyncio
import os
import pickle
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any, ClassVar, cast

from .errors import ConfigError, NotPicklableError
from .runtime.cuts import noticing_cuts
from .runtime.process_fork import ProcessLock, leave_to_parent
from .text import text_of

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Generator
    from contextlib import AbstractAsyncContextManager
    from types import TracebackType
    from typing import Self


_claiming = ProcessLock()
"""Held while an object is claimed for a loop: loops of other threads may claim it too."""


class _Opening:
    """One object, open on one loop of one process."""

    __slots__ = ("count", "lock", "loop", "process", "stack", "users")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.process = os.getpid()
        self.lock = asyncio.Lock()
        self.count = 0
        self.users = 0
        """Entries, including those that have not ended, and exits that have not ended."""
        self.stack = AsyncExitStack()

    def claim(self) -> None:
        self.users += 1

    def release(self) -> None:
        self.users -= 1

    def enter(self) -> None:
        self.count += 1

    def leave(self) -> bool:
        """Count an exit; return whether it is the last."""
        self.count -= 1
        return self.count == 0

    def keep(self, stack: AsyncExitStack) -> None:
        self.stack = stack


class Openable:
    """Base class of objects with `async with`: the first entry opens, the last exit closes.

    A subclass overrides `_open`, and lists in `_run_time` the attributes of its run-time state:
    they are `None` while it is closed, and are not pickled. Opening it on a second live loop raises
    `ConfigError`; pickling raises `NotPicklableError` if an argument cannot be pickled.
    """

    _run_time: ClassVar[tuple[str, ...]] = ()
    _opening: _Opening | None = None

    async def _open(self, stack: AsyncExitStack) -> None:
        """Open, and push onto `stack` the resources to close."""

    def _terminate(self) -> None:
        """Drop immediately the resources that could not be closed in time."""

    @property
    def is_open(self) -> bool:
        """Whether the object is open in this process."""
        opening = self._opening
        return opening is not None and opening.count > 0 and opening.process == os.getpid()

    async def __aenter__(self) -> Self:
        opening = self._claim()
        try:
            async with opening.lock:
                if opening.count == 0:
                    await self._first_entry(opening)
                opening.enter()
        except BaseException:
            opening.release()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        opening = self._opening
        if opening is None or opening.process != os.getpid():
            return
        async with opening.lock:
            is_last = opening.leave()
            try:
                if is_last:
                    await self._last_exit(opening)
            finally:
                opening.release()

    def _claim(self) -> _Opening:
        """Count a user on this loop. Raises `ConfigError` if another live loop has users."""
        loop = asyncio.get_running_loop()
        with _claiming:
            opening = self._opening
            if opening is not None and opening.process != os.getpid():
                leave_to_parent(opening, *(getattr(self, name, None) for name in self._run_time))
                self._forget()
                opening = None
            if opening is not None and opening.loop is not loop:
                if opening.users and not opening.loop.is_closed():
                    where = f"{self!r} is open on another running event loop"
                    raise ConfigError(f"{where}; give each loop an object of its own")
                self._forget()
                opening = None
            if opening is None:
                opening = self._opening = _Opening(loop)
            opening.claim()
        return opening

    async def _first_entry(self, opening: _Opening) -> None:
        try:
            async with AsyncExitStack() as stack:
                await self._open(stack)
                opening.keep(stack.pop_all())
        except BaseException:
            self._forget_state()
            raise

    async def _last_exit(self, opening: _Opening) -> None:
        try:
            await opening.stack.aclose()
        except asyncio.CancelledError:
            self._terminate()
            raise
        finally:
            self._forget_state()

    def _forget(self) -> None:
        self._opening = None
        self._forget_state()

    def _forget_state(self) -> None:
        for name in self._run_time:
            setattr(self, name, None)

    def __getstate__(self) -> dict[str, Any]:
        """Return the description only. Raises `NotPicklableError`, which names the argument."""
        state = {name: value for name, value in vars(self).items() if name != "_opening"}
        state.update(dict.fromkeys((name for name in self._run_time if name in state), None))
        for name, value in state.items():
            check_picklable(self, name, value)
        return state


def check_picklable(owner: object, name: str, value: object) -> None:
    """Raise `NotPicklableError`, which names the argument, if its value cannot be pickled."""
    if isinstance(value, (str, bytes, int, float, bool, type(None))) or callable(value):
        return  # callers that send sinks elsewhere use cloudpickle, which handles functions
    try:
        pickle.dumps(value)
    except NotPicklableError:
        raise
    except Exception as error:
        told = text_of(error)
        if "lambda" in told or "local object" in told:
            return
        given = f"{type(owner).__name__}: the argument {name.strip('_')}={type(value).__name__}"
        rule = f"cannot be pickled ({told}); pass a function that makes it instead"
        raise NotPicklableError(f"{given} {rule}") from error


@contextmanager
def only_user(thing: object) -> Generator[None]:
    """Hold `thing` within the context. Raises `ConfigError` if it is held, on whichever loop."""
    user = object()
    # atomic: loops in different threads may open it at the same moment
    if vars(thing).setdefault("_user", user) is not user:
        raise ConfigError(f"{thing!r} is already open; make a separate object for each user")
    try:
        yield
    finally:
        del vars(thing)["_user"]


@asynccontextmanager
async def opened(thing: object) -> AsyncGenerator[None]:
    """Hold `thing` open within the context if it supports `async with`; otherwise do nothing.

    A cancellation that it swallows while it opens is raised nevertheless, and it is closed.
    """
    if not hasattr(type(thing), "__aenter__"):
        yield
        return
    async with AsyncExitStack() as stack:
        with noticing_cuts():
            await stack.enter_async_context(cast("AbstractAsyncContextManager[object]", thing))
        yield
