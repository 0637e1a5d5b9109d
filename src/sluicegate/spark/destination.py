"""What a sink tells about the rows that it gets, checked before the first row is sent.

1. A check follows the items: through a decorator to its sink, through a combinator to each branch,
   but not to dead-letter targets, which receive records instead of items.
2. A sink may name columns that it can never write. A closed sink checks only the types; an open sink
   also checks the known schema of its destination.
3. It may replace rows by key columns, or not keep the rows of one key in order although it receives
   them in order.
4. The checks do no I/O. A sink that tells nothing accepts all columns, replaces no row and keeps the
   order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from .._core.sink import branches_of, inner_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping


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
    for inner in _inner_sinks(sink):
        for name, why in refused_columns(inner, schema).items():
            found.setdefault(name, why)
    return found


def _inner_sinks(sink: object) -> Iterable[object]:
    inner = inner_of(sink)
    return branches_of(sink) if inner is None else (inner,)


@runtime_checkable
class ReplacesRows(Protocol):
    """A sink that may replace a row with a later one of the same key."""

    @property
    def replaces_by(self) -> tuple[str, ...] | None:
        """Return the columns of that key; `None` if no row is replaced or the key is unknown."""
        ...


def replaced_by(sink: object) -> Iterator[tuple[str, ...]]:
    """Return the known keys of `sink`, or of all inner sinks of the same items."""
    if isinstance(sink, ReplacesRows):
        if (columns := sink.replaces_by) is not None:
            yield columns
        return
    inner = inner_of(sink)
    for each in branches_of(sink) if inner is None else (inner,):
        yield from replaced_by(each)


@runtime_checkable
class ScattersKeys(Protocol):
    """A sink whose destination has several lanes that are ordered independently."""

    @property
    def scatters_keys(self) -> str | None:
        """Return why rows of a key can reach several lanes, and a remedy; `None` if they cannot."""
        ...


def scattered_by(sink: object) -> str | None:
    """Return the first reason of `sink` or an inner sink of the same items; `None` without any."""
    if isinstance(sink, ScattersKeys):
        return sink.scatters_keys
    inner = inner_of(sink)
    found = map(scattered_by, branches_of(sink) if inner is None else (inner,))
    return next((reason for reason in found if reason is not None), None)
