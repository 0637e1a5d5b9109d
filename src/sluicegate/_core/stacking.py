"""Compose a sink from a base and decorators, in reading order; plain functions as sinks."""

from __future__ import annotations

import inspect
import io
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from .checks import accepts, bad, is_async, shown
from .opening import Openable
from .runtime.threads import in_thread
from .sink import Sink, SinkDecorator

if TYPE_CHECKING:
    from .batch import Batch
    from .sink import Decorator, SinkFunction, SinkLike, WriteResult


T = TypeVar("T")


def stack(base: SinkLike[T], *decorators: Decorator[T]) -> Sink[T]:
    """Wrap `base` in `decorators`, the first one innermost; each call creates separate state.

    `base` is a sink or a function of a batch. Raises `ConfigError` for a bad base or decorator.
    """
    given = cast("object", base)
    if isinstance(given, (list, tuple)):
        instead = "is a list; pass the sink and its decorators one by one: stack(sink, Retry())"
        raise bad("base", cast("object", given), instead)
    sink = as_sink(base, "base")
    for place, decorator in enumerate(decorators):
        name = f"decorators[{place}]"
        if (rule := _why_no_decorator(decorator)) is not None:
            raise bad(name, decorator, rule)
        made: object = decorator(sink)
        if not callable(getattr(made, "write", None)):
            if inspect.iscoroutine(made):
                made.close()
            raise bad(name, decorator, f"returned {shown(made)}, which has no `write`")
        sink = made  # type: ignore[assignment]  # it has a `write`
    return sink


def _why_no_decorator(decorator: object) -> str | None:
    """Say why something is not a decorator, and what to write instead; `None` for a decorator."""
    if isinstance(decorator, type):
        return f"is a class; pass an instance: {decorator.__name__}(...)"
    if isinstance(decorator, (list, tuple)):
        return "is a list; pass the decorators one by one: stack(sink, Timeout(5.0), Retry())"
    if callable(getattr(decorator, "write", None)) or is_async(decorator):
        return "is a sink, which comes first: stack(sink, Timeout(5.0), Retry())"
    return None if callable(decorator) else "must be a decorator, such as Retry()"


class FunctionSink(Openable, Generic[T]):
    """A function of a batch as a sink.

    An `async def` is awaited. A plain `def` runs in the loop's default thread pool; a thread cannot
    be stopped, so a cancelled write ends only when its function returns. Meanwhile its items are
    `unknown`, and no second write starts.
    """

    def __init__(self, function: SinkFunction[T]) -> None:
        self._function = function
        self._is_async = is_async(function)

    @property
    def _callee(self) -> object:
        return self._function

    async def write(self, batch: Batch[T]) -> WriteResult | None:
        """Call the function with the batch."""
        call = self._function
        answer: Any = call(batch) if self._is_async else await in_thread(call, batch)
        if inspect.isawaitable(answer):
            answer = await answer
        return cast("WriteResult | None", answer)

    def __repr__(self) -> str:
        return f"FunctionSink({getattr(self._function, '__qualname__', repr(self._function))})"


def as_sink(sink: SinkLike[T], name: str = "sink") -> Sink[T]:
    """Return `sink` itself, or a sink around a function. Raises `ConfigError` for anything else.

    The error names the argument `name` and says what to write.
    """
    given: object = sink
    if (rule := _why_no_sink(given)) is not None:
        if inspect.iscoroutine(given):
            given.close()
        raise bad(name, given, rule)
    if callable(getattr(given, "write", None)):
        return cast("Sink[T]", sink)
    return FunctionSink(cast("SinkFunction[T]", sink))


def is_same_sink(one: object, other: object) -> bool:
    """Return whether both are one sink, or sinks of one function."""
    if isinstance(one, FunctionSink) and isinstance(other, FunctionSink):
        return one._callee == other._callee  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
    return one is other


def _why_no_sink(sink: object) -> str | None:
    """Say why something is not a sink, and what to write instead; `None` for a sink."""
    if isinstance(sink, type):
        return f"is a class; pass an instance: {sink.__name__}(...)"
    if isinstance(sink, SinkDecorator):
        return f"is a decorator without its sink; write stack(sink, {type(sink).__name__}(...))"
    write = getattr(sink, "write", sink)
    if not callable(write) or isinstance(sink, io.IOBase):
        return "must have `async def write(self, batch)`, or be a function of a batch"
    if inspect.isgeneratorfunction(write) or inspect.isasyncgenfunction(write):
        return "is a generator function; write the batch and return nothing, without `yield`"
    return None if accepts(write, 1) else "must take one argument, the batch"
