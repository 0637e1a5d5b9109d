"""What a sink tells about the rows that it gets, checked before the first row is sent.

1. A check follows the items: through a decorator to its sink, through a combinator to each branch,
   but not to dead-letter targets, which receive records instead of items.
2. A sink may name columns that it can never write. A closed sink checks only the types; an open sink
   also checks the known schema of its destination.
3. It may replace rows by key columns, or not keep the rows of one key in order although it receives
   them in order.
4. It may take nested values as text of JSON; Spark then writes that text.
5. Its items may be changes, of which only the order per key makes sense.
6. The checks do no I/O. A sink that tells nothing accepts all columns, replaces no row and keeps the
   order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from .._core.checks import bad
from .._core.sink import branches_of, inner_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence


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
    found: dict[str, str] = {}
    for judge in _outermost(sink, JudgesColumns):
        found = {**judge.refused_columns(schema), **found}
    return found


def _outermost(sink: object, kind: Any) -> Iterator[Any]:
    """Yield `sink` if it is of the kind, else the outermost inner sinks of the same items."""
    if isinstance(sink, kind):
        yield sink
    else:
        for inner in _inner_sinks(sink):
            yield from _outermost(inner, kind)


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
    for each in _outermost(sink, ReplacesRows):
        if each.replaces_by is not None:
            yield each.replaces_by


@runtime_checkable
class ScattersKeys(Protocol):
    """A sink whose destination has several lanes that are ordered independently."""

    @property
    def scatters_keys(self) -> str | None:
        """Return why rows of a key can reach several lanes, and a remedy; `None` if they cannot."""
        ...


def scattered_by(sink: object) -> str | None:
    """Return the first reason of `sink` or an inner sink of the same items; `None` without any."""
    found = (each.scatters_keys for each in _outermost(sink, ScattersKeys))
    return next((reason for reason in found if reason is not None), None)


@runtime_checkable
class TakesJson(Protocol):
    """A sink that takes the JSON of a struct, a map or a variant in its place."""

    @property
    def takes_json(self) -> bool:
        """Whether it does."""
        ...


def takes_json(sink: object) -> bool:
    """Return whether `sink`, or every inner sink of the same items, takes JSON for nested values."""
    if isinstance(sink, TakesJson):
        return sink.takes_json
    inner = [*_inner_sinks(sink)]
    return bool(inner) and all(map(takes_json, inner))


@runtime_checkable
class AppliesChanges(Protocol):
    """A sink whose items may delete rows, or update a part of one."""

    @property
    def applies_changes(self) -> str | None:
        """`"rows"`, or `"parts"` if an item may lack columns; `None` if items are plain rows."""
        ...


def check_changes(
    sink: object, key: Sequence[str], order_by: Sequence[str], *, latest: bool
) -> None:
    """Raise `ConfigError` if `sink`, or an inner sink of the same items, needs order for changes."""
    found = sink.applies_changes if isinstance(sink, AppliesChanges) else None
    if found is not None and not (key and order_by):
        rule = (
            "is needed, and order_by: the sink applies changes, in order for each key. A format "
            "has no order: use write_dataframe or foreach_batch"
        )
        raise bad("key", tuple(key) or None, rule)
    if found == "parts" and latest:
        rule = "would lose columns that only earlier changes of a key have (present_column=)"
        raise bad("latest_only", True, rule)
    for inner in _inner_sinks(sink):
        check_changes(inner, key, order_by, latest=latest)
