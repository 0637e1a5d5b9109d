"""Blocking work in a thread, without losing sight of it."""

from __future__ import annotations

import asyncio
import contextvars
from functools import partial
from typing import TYPE_CHECKING, ParamSpec, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

P = ParamSpec("P")
R = TypeVar("R")


async def in_thread(function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
    """Call `function` in the loop's thread pool and return what it returns. Suspends until it has
    ended, even when cancelled.

    A thread cannot be stopped: what runs there is still writing. Cancellation is raised when it has
    ended, so no second write starts beside it; the result is lost then, and the outcome of the
    write unknown.
    """
    context = contextvars.copy_context()
    call = asyncio.get_running_loop().run_in_executor(
        None, partial(context.run, function, *args, **kwargs)
    )
    cancelled: asyncio.CancelledError | None = None
    while not call.done():
        try:
            await asyncio.wait([call])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        call.exception()  # looked at, so that it is not reported as never retrieved
        raise cancelled
    return call.result()
