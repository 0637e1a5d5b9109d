"""Which columns a sink could never write: asked before the first row is sent.

1. The question goes the way of the items: a decorator passes it to the sink that it wraps, a
   combinator to each of its branches. Dead-letter targets get records and no items, and are not
   asked.
2. A closed sink answers from the types alone. An open one also knows what it has read of its
   destination.
3. No answer costs I/O, and a sink that has no opinion takes everything.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from .sink import branches_of, inner_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


@runtime_checkable
class JudgesColumns(Protocol):
    """A sink that knows which columns it can write."""

    def refused_columns(self, schema: Any) -> Mapping[str, str]:
        """For each column of a `pyarrow.Schema` that this sink could never write, or needs and does
        not find: why, and what to do.

        Does not suspend, and may be called whether the sink is open or not.
        """
        ...


def refused_columns(sink: object, schema: Any) -> dict[str, str]:
    """The columns that `sink`, or an inner sink of the same items, cannot write, and why."""
    if isinstance(sink, JudgesColumns):
        return dict(sink.refused_columns(schema))
    found: dict[str, str] = {}
    for inner in _next(sink):
        for name, why in refused_columns(inner, schema).items():
            found.setdefault(name, why)
    return found


def _next(sink: object) -> Iterable[object]:
    inner = inner_of(sink)
    return branches_of(sink) if inner is None else (inner,)
