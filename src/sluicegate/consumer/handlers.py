"""Checks of a caller's handler, and its conversion to the async function that workers call.

1. An `async def` is called directly, without a wrapper, since it runs once per message.
2. A plain function runs in the loop's thread pool. A thread cannot be stopped: a cancelled handler
   keeps its key and its worker until its function has returned.
3. An invalid handler is refused before anything starts; the error names the remedy.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from .._core.checks import accepts, bad, is_async
from .._core.runtime.threads import in_thread

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from .message import Message

MessageHandler: TypeAlias = "Callable[[Message], object]"
"""A handler of single messages; plain or async."""
BatchHandler: TypeAlias = "Callable[[list[Message]], object]"
"""A handler of batches; plain or async."""


class OfOneMessage:
    """A handler object that takes single messages only, and therefore cannot handle batches."""


def as_handler(handler: object, name: str = "handler") -> Callable[[Any], Awaitable[object]]:
    """Return the async function of a handler of messages. Raises `ConfigError` for an invalid
    handler.
    """
    return _checked(handler, name, "the message")


def as_batch_handler(handler: object, name: str = "handler") -> Callable[[Any], Awaitable[object]]:
    """Return the async function of a handler of lists of messages. Raises `ConfigError` for an
    invalid handler.
    """
    if isinstance(handler, OfOneMessage):
        raise bad(name, handler, "handles one message at a time; pass it to run()")
    return _checked(handler, name, "the list of messages")


def _checked(handler: object, name: str, argument: str) -> Callable[[Any], Awaitable[object]]:
    if (rule := why_no_function(handler, argument)) is not None:
        if inspect.iscoroutine(handler):
            handler.close()
        raise bad(name, handler, rule)
    call = cast("Callable[[Any], Any]", handler)
    return call if is_async(call) else InThread(call)


def why_no_function(handler: object, argument: str) -> str | None:
    """Return why an object is not a function of `argument`, and the remedy; `None` if it is one,
    async or not.
    """
    if isinstance(handler, type):
        return f"is a class; pass a function of {argument}, or an instance with `async __call__`"
    if inspect.iscoroutine(handler):
        return "is a coroutine; pass the function itself, without calling it"
    if not callable(handler):
        return f"must be a function of {argument}"
    if _is_generator(handler) or _is_generator(getattr(handler, "__call__", None)):  # noqa: B004
        return f"is a generator function; handle {argument} and return, without `yield`"
    return None if accepts(handler, 1) else f"must take one argument, {argument}"


def _is_generator(function: object) -> bool:
    return inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function)


class InThread:
    """A plain function as a handler. A call ends only when the function returns, even after a
    cancellation.
    """

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self._function = function

    async def __call__(self, handled: Any) -> object:
        """Call the function in a thread; await its result if that is an awaitable."""
        answer = await in_thread(self._call, handled)
        return await answer if inspect.isawaitable(answer) else answer

    def _call(self, handled: Any) -> Any:
        try:
            return self._function(handled)
        except StopIteration as error:  # a future does not accept it: its waiter would hang
            raise RuntimeError("the handler raised StopIteration") from error

    def __repr__(self) -> str:
        return getattr(self._function, "__qualname__", repr(self._function))
