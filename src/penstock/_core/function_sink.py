"""Plain functions as sinks."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from .checks import bad
from .opening import Openable
from .threads import in_thread

if TYPE_CHECKING:
    from collections.abc import Callable

    from .batch import Batch
    from .result import WriteResult
    from .sink import Sink, SinkFunction, SinkLike

T = TypeVar("T")


class FunctionSink(Openable, Generic[T]):
    """A function of a batch as a sink.

    An `async def` is awaited. A plain `def` runs in the loop's default thread pool; a thread cannot
    be stopped, so a write that is cut ends only when its function does: its items are `unknown`
    meanwhile, and no second write starts beside it.
    """

    def __init__(self, function: SinkFunction[T]) -> None:
        self._function = function
        self._is_async = _is_async(function)

    async def write(self, batch: Batch[T]) -> WriteResult | None:
        """Call the function with the batch."""
        call = self._function
        answer: Any = call(batch) if self._is_async else await in_thread(call, batch)
        if inspect.isawaitable(answer):
            answer = await answer
        return cast("WriteResult | None", answer)

    def __repr__(self) -> str:
        return f"FunctionSink({getattr(self._function, '__qualname__', repr(self._function))})"


def _is_async(function: object) -> bool:
    call = getattr(function, "__call__", None)  # noqa: B004
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call)


def _takes_a_batch(function: Callable[..., object]) -> bool:
    try:
        inspect.signature(function).bind(None)
    except TypeError:
        return False
    except ValueError:  # a built-in without a signature
        pass
    return True


def as_sink(sink: SinkLike[T]) -> Sink[T]:
    """`sink` itself, or a function wrapped as a sink. Raises `ConfigError` for anything else."""
    if isinstance(sink, type):
        raise bad("sink", sink, f"is a class; pass an instance: {sink.__name__}(...)")
    if callable(getattr(sink, "write", None)):
        return cast("Sink[T]", sink)
    if inspect.iscoroutine(sink):
        sink.close()
        raise bad("sink", sink, "is a coroutine; pass the function itself, without calling it")
    if callable(sink):
        if not _takes_a_batch(sink):
            raise bad("sink", sink, "must take one argument, the batch")
        return FunctionSink(sink)
    raise bad("sink", sink, "must have `async def write(self, batch)`, or be a function of a batch")
