"""Compose a sink from a base and decorators, in reading order."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, TypeVar, cast

from .checks import bad, is_async, shown
from .function_sink import as_sink

if TYPE_CHECKING:
    from .sink import Decorator, Sink, SinkLike

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
        if (rule := _why_not(decorator)) is not None:
            raise bad(name, decorator, rule)
        made: object = decorator(sink)
        if not callable(getattr(made, "write", None)):
            if inspect.iscoroutine(made):
                made.close()
            raise bad(name, decorator, f"returned {shown(made)}, which has no `write`")
        sink = made  # type: ignore[assignment]  # it has a `write`
    return sink


def _why_not(decorator: object) -> str | None:
    """Say why something is not a decorator, and what to write instead; `None` for a decorator."""
    if isinstance(decorator, type):
        return f"is a class; pass an instance: {decorator.__name__}(...)"
    if isinstance(decorator, (list, tuple)):
        return "is a list; pass the decorators one by one: stack(sink, Timeout(5.0), Retry())"
    if callable(getattr(decorator, "write", None)) or is_async(decorator):
        return "is a sink, which comes first: stack(sink, Timeout(5.0), Retry())"
    return None if callable(decorator) else "must be a decorator, such as Retry()"
