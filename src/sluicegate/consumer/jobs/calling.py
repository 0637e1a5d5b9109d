"""Conversion of a caller's functions to async functions."""

from __future__ import annotations

from functools import lru_cache
from types import FunctionType, MethodType
from typing import TYPE_CHECKING, Any, cast

from ..._core import checks
from ..handlers import InThread
from ..results import Incomplete, Manual, Nak, ResultTypeError, Terminate, ToDeadLetter

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

REMEMBERED = 32
"""Number of callbacks whose check is cached; usually there are only a few."""


def as_function(
    name: str, function: Any, given: str, *, takes: int
) -> Callable[..., Awaitable[object]]:
    """Return the async function; a plain one runs in a thread. Raises `ConfigError` for an invalid
    function.
    """
    if not callable(function) or not checks.accepts(function, takes):
        raise checks.bad(name, function, f"must be a function of {given}")
    call: Callable[..., Any] = function
    if checks.is_async(call):
        return call
    in_thread = InThread(lambda arguments: call(*arguments))

    async def called(*arguments: object) -> object:
        return await in_thread(arguments)

    return called


def as_callback(function: Any) -> Callable[..., Awaitable[object]]:
    """Like `as_function`, for a callback that is passed with each event."""
    if isinstance(function, (FunctionType, MethodType)):  # these compare by identity
        return _remembered(function)
    return _as_callback(function)


def _as_callback(function: Any) -> Callable[..., Awaitable[object]]:
    return as_function("callback", function, "a context and a group", takes=2)


_remembered = lru_cache(REMEMBERED)(_as_callback)


_REFUSALS = (Nak, ToDeadLetter, Terminate, Manual, Incomplete, BaseException)


def check_returned_nothing(returned: object, what: str, rule: str) -> None:
    """Raise `ResultTypeError` if a function without a result has returned the result of a handler,
    an exception, or a list with one of them: its caller expects an effect, and there is none.
    """
    several = isinstance(returned, (list, tuple))
    for each in cast("Sequence[object]", returned) if several else (returned,):
        if isinstance(each, _REFUSALS):
            raise ResultTypeError(f"{what} returned {each!r:.100}, which has no effect; {rule}")
