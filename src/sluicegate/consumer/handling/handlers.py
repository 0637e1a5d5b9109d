"""Checks of a caller's function, its conversion to an async function, and reports of its turns.

1. An `async def` is called directly, without a wrapper, since it runs once per message.
2. A plain function runs in the loop's thread pool. A thread cannot be stopped: a cancelled handler
   keeps its key and its worker until its function has returned.
3. An invalid handler is refused before anything starts; the error names the remedy.
4. Turns are reported to the observers that request them. Without such an observer the handler is
   called directly.
"""

from __future__ import annotations

import inspect
from functools import lru_cache, partial
from types import FunctionType, MethodType
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from ..._core import checks
from ..._core.checks import accepts, bad, is_async
from ..._core.observer import HandlerEnd
from ..._core.runtime.threads import in_thread
from .results import (
    Ack,
    Incomplete,
    Manual,
    Nak,
    ResultTypeError,
    Skip,
    Terminate,
    ToDeadLetter,
    reason_of,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from ..._core.observer import ConsumerObserver, HandlerOutcome, HandlerWatch
    from ..lanes.message import Message
    from ..run import Run


MessageHandler: TypeAlias = "Callable[[Message], object]"
"""A handler of single messages; plain or async."""
BatchHandler: TypeAlias = "Callable[[list[Message]], object]"
"""A handler of batches; plain or async."""

REMEMBERED = 32
"""Number of callbacks whose check is cached; usually there are only a few."""
Ends: TypeAlias = "list[tuple[ConsumerObserver, Callable[[HandlerEnd], None]]]"

_REFUSALS = (Nak, ToDeadLetter, Terminate, Manual, Incomplete, BaseException)


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


def check_returned_nothing(returned: object, what: str, rule: str) -> None:
    """Raise `ResultTypeError` if a function without a result has returned the result of a handler,
    an exception, or a list with one of them: its caller expects an effect, and there is none.
    """
    several = isinstance(returned, (list, tuple))
    for each in cast("Sequence[object]", returned) if several else (returned,):
        if isinstance(each, _REFUSALS):
            raise ResultTypeError(f"{what} returned {each!r:.100}, which has no effect; {rule}")


def with_reports(
    handler: Callable[[Any], Awaitable[object]], run: Run, *, is_batch: bool = False
) -> Callable[[Any], Awaitable[object]]:
    """Return a handler that reports its turns; without an interested observer, the handler
    itself.
    """
    observers, name = run.observers, run.name
    watches: list[tuple[ConsumerObserver, HandlerWatch]] = []
    for observer in observers:
        watch = observers.ask(observer, partial(observer.handling, name, is_batch=is_batch))
        if watch is not None:
            watches.append((observer, watch))
    if not watches:
        return handler
    return ObservedHandler(handler, watches, run, is_batch=is_batch)


class ObservedHandler:
    """A handler of messages or batches, and the observers of its turns."""

    def __init__(
        self,
        handler: Callable[[Any], Awaitable[object]],
        watches: Sequence[tuple[ConsumerObserver, HandlerWatch]],
        run: Run,
        *,
        is_batch: bool,
    ) -> None:
        self._handler = handler
        self._watches = watches
        self._run = run
        self._is_batch = is_batch

    async def __call__(self, handled: Any) -> object:
        """Call the handler; report its turn."""
        began = self._run.clock.now()
        ends = self._begin(handled if self._is_batch else [handled])
        try:
            result = await self._handler(handled)
        except BaseException as error:
            self._end(ends, HandlerEnd("error", error, self._run.clock.now() - began))
            raise
        outcome, failure = outcome_of(result, is_batch=self._is_batch)
        self._end(ends, HandlerEnd(outcome, failure, self._run.clock.now() - began))
        return result

    def _begin(self, messages: Sequence[Any]) -> Ends:
        ends: Ends = []
        for observer, watch in self._watches:
            end = self._run.observers.ask(observer, partial(watch, messages))
            if end is not None:
                ends.append((observer, end))
        return ends

    def _end(self, ends: Ends, told: HandlerEnd) -> None:
        for observer, end in reversed(ends):
            self._run.observers.ask(observer, partial(end, told))

    def __repr__(self) -> str:
        return f"ObservedHandler({self._handler!r})"


def outcome_of(
    result: object, *, is_batch: bool = False
) -> tuple[HandlerOutcome, BaseException | None]:
    """Return the outcome of a handler's result, and its error."""
    if result is None:
        return "ack", None
    if is_batch:
        return _outcome_of_batch(result)
    match result:
        case Skip():
            return "skip", None
        case Ack():
            return "ack", None
        case Nak():
            return "nak", result.error
        case ToDeadLetter():
            return "dead_letter", reason_of(result)
        case Terminate():
            return "terminate", reason_of(result)
        case Manual() | Incomplete():
            return "manual", None
        case _:
            return "invalid", None


def _outcome_of_batch(result: object) -> tuple[HandlerOutcome, BaseException | None]:
    """Return `mixed` with the first error, unless every message is acknowledged."""
    if not isinstance(result, (list, tuple)):
        return "invalid", None
    found = [outcome_of(each) for each in cast("Sequence[object]", result)]
    if all(outcome in {"ack", "skip"} for outcome, _ in found):
        return "ack", None
    return "mixed", next((error for _, error in found if error is not None), None)
