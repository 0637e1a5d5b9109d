"""The key columns by which a sink replaces rows, as far as they are known.

The check follows the items: through a decorator to its sink, through a combinator to each branch,
but not to dead-letter targets.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

from .sink import branches_of, inner_of

if TYPE_CHECKING:
    from collections.abc import Iterator


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
