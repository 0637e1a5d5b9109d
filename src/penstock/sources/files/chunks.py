"""What the readers of all formats have in common."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .places import End, Mark

CHUNK_BYTES = 1 << 20
"""Bytes of rows after which a chunk ends."""
PASSED_BYTES = 64 << 20
"""Bytes that are passed over at once on the way to the first row; so a close is not held up."""


class RowChunk(NamedTuple):
    """The next rows of a file."""

    rows: Sequence[tuple[int, object]]
    """Numbers, from 0 on, and values. Numbers of empty lines are missing."""
    next_row: int
    mark: Mark | None = None
    """Of the row `next_row`, if its place is known."""
    end: End | None = None
    """The file has no more rows."""
    waits: bool = False
    """A followed file has no more now."""
    broken: str | None = None
    """Why no more rows can be read. The rows of this chunk are good."""


class RowReader(Protocol):
    """An open file, read by one thread at a time. Every call blocks."""

    @property
    def rows(self) -> int | None:
        """The number of rows, if the file tells it."""
        ...

    def read(self, most: int) -> RowChunk:
        """The next rows, at most so many."""
        ...

    def close(self) -> None:
        """Close the file."""
        ...
