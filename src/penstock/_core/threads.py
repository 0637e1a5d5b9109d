"""Work that completes despite cancellation: in a thread, or in its own task."""

from __future__ import annotations

import asyncio
import contextvars
from functools import partial
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from .runtime.closing import close_within

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

P = ParamSpec("P")
R = TypeVar("R")


async def in_thread(function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
    """Call `function` in the loop's thread pool; suspend until it has ended, even when cancelled.

    A thread cannot be stopped, and continues to write. Cancellation is raised when it has ended, so
    that no second write runs concurrently; then the result is lost, and the outcome of the write is
    unknown.
    """
    work = partial(contextvars.copy_context().run, function, *args, **kwargs)
    call = asyncio.get_running_loop().run_in_executor(None, work)
    cancelled: asyncio.CancelledError | None = None
    while not call.done():
        try:
            await asyncio.wait([call])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        call.exception()  # retrieved, so that asyncio does not report it
        raise cancelled
    return call.result()


async def uncut(work: Coroutine[Any, Any, R], *, within: float) -> R:
    """Run `work` to its end even when cancelled; then raise the cancellation.

    `within` seconds after the cancellation, or with the end of the closing, `work` is cancelled
    too. Its result is lost.
    """
    call = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(call)
    except asyncio.CancelledError:
        await asyncio.wait([call], timeout=close_within(within))
        if call.done() and not call.cancelled():
            call.exception()  # retrieved, so that asyncio does not report it
        raise
    finally:
        call.cancel()
