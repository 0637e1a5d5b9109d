"""Functions that a caller passes, as the async ones that are called."""

from __future__ import annotations

from functools import lru_cache
from types import FunctionType, MethodType
from typing import TYPE_CHECKING, Any

from ..._core import checks
from ..handlers import InThread

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

REMEMBERED = 32
"""Callbacks that are looked at only once: as a rule, there are few of them."""


def as_function(
    name: str, function: Any, given: str, *, takes: int
) -> Callable[..., Awaitable[object]]:
    """The async function; a plain one runs in a thread. Raises `ConfigError` for what is none."""
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
    """As `as_function`, for a callback that is passed with each event."""
    if isinstance(function, (FunctionType, MethodType)):  # they compare by identity
        return _remembered(function)
    return _as_callback(function)


def _as_callback(function: Any) -> Callable[..., Awaitable[object]]:
    return as_function("callback", function, "a context and a group", takes=2)


_remembered = lru_cache(REMEMBERED)(_as_callback)
