"""Columns that a sink could never write, found before the first row is sent.

1. The check follows the items: through a decorator to its sink, through a combinator to each
   branch, but not to dead-letter targets, which get records and no items.
2. A closed sink answers from the types alone, an open one also from its destination's known schema.
3. No answer costs I/O, and a sink without `refused_columns` takes everything.
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
        """The columns of a `pyarrow.Schema` that this sink cannot write, or misses, and the remedy.

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
