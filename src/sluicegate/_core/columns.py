"""Check for columns that a sink can never write, before the first row is sent.

1. The check follows the items: through a decorator to its sink, through a combinator to each
   branch, but not to dead-letter targets, which receive records instead of items.
2. A closed sink checks only the types; an open sink also checks the known schema of its
   destination.
3. The check does no I/O, and a sink without `refused_columns` accepts all columns.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from .sink import branches_of, inner_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


@runtime_checkable
class JudgesColumns(Protocol):
    """A sink that can check a schema before writing."""

    def refused_columns(self, schema: Any) -> Mapping[str, str]:
        """Return columns of a `pyarrow.Schema` that cannot be written, or are missing, with a
        remedy.

        Does not suspend, and may be called whether the sink is open or not.
        """
        ...


def refused_columns(sink: object, schema: Any) -> dict[str, str]:
    """Return the columns that `sink`, or an inner sink of the same items, cannot write, and why."""
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
