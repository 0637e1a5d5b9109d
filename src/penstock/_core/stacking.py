"""Compose a sink from a base and decorators, in reading order."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from .checks import bad
from .function_sink import as_sink

if TYPE_CHECKING:
    from .sink import Decorator, Sink, SinkLike

T = TypeVar("T")


def stack(base: SinkLike[T], *decorators: Decorator[T]) -> Sink[T]:
    """Wrap `base` in `decorators`, the first innermost; each application has state of its own.

    `base` is a sink or a function of a batch. Raises `ConfigError` for a bad base or decorator.
    """
    sink = as_sink(base)
    for place, decorator in enumerate(decorators):
        name = f"decorators[{place}]"
        if isinstance(decorator, type) or not callable(decorator):
            rule = "must be a decorator, already called: Timeout(5.0), not Timeout"
            raise bad(name, decorator, rule)
        made = decorator(sink)
        if not callable(getattr(made, "write", None)):
            raise bad(name, decorator, f"returned {made!r}, which has no `write`")
        sink = made
    return sink
