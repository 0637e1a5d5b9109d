"""What a plain function lacks until it is loaded, such as the schema of a record.

1. The function raises `NotLoaded` instead of waiting. Its caller, which may wait, loads what is
   missing and calls it again: `called` does both. So the function stays synchronous and fast, and a
   caller that handles records in order keeps their order. `called_again` is for callers whose first
   call must cost nothing more.
2. The function may therefore run several times, and must have no effect before it has everything.
3. Each loading makes progress or raises, so the calls end.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from .errors import UnavailableError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable


class NotLoaded(UnavailableError):
    """Something is not loaded yet: await `load()`, then call the function again.

    A caller that does not know this treats it as an outage.
    """

    def __init__(self, message: str, load: Callable[[], Awaitable[object]]) -> None:
        super().__init__(message)
        self.load = load


async def called(function: Callable[[Any], Any], argument: object) -> Any:
    """Return the result of `function(argument)`, plain or async, after loading what it lacks.

    Suspends while loading. Raises the errors of the function and of loading.
    """
    while True:
        try:
            answer = function(argument)
            return await answer if inspect.isawaitable(answer) else answer
        except NotLoaded as error:
            missing = error
        await missing.load()


async def called_again(missing: NotLoaded, function: Callable[[Any], Any], argument: object) -> Any:
    """Like `called`, after a first call that lacked something."""
    await missing.load()
    return await called(function, argument)
