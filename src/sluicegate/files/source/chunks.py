"""The interface and the limits shared by the readers of all formats."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .places import End, Mark

CHUNK_BYTES = 1 << 20
"""Size of a chunk in bytes of rows."""
PASSED_BYTES = 64 << 20
"""The most bytes to skip in one call on the way to the first row, to keep a close fast."""


class UndecodableRow(NamedTuple):
    """The value of a row that cannot be decoded. The rows after it can be read."""

    error: Exception
    raw: bytes | None = None
    """Its bytes, if they are known."""


class RowChunk(NamedTuple):
    """The next rows of a file."""

    rows: Sequence[tuple[int, object]]
    """Row numbers, starting at 0, and values. Empty lines have a number and no row."""
    next_row: int
    mark: Mark | None = None
    """The mark of the row `next_row`, if its byte is known."""
    end: End | None = None
    """Set if the file has no more rows."""
    waits: bool = False
    """Whether a followed file has no more rows at present."""
    broken: str | None = None
    """The reason why no more rows can be read. The rows of this chunk are intact."""


class RowReader(Protocol):
    """An open file, used by one thread at a time. Every call blocks."""

    @property
    def rows(self) -> int | None:
        """The number of rows, if the file states it."""
        ...

    def read(self, most: int) -> RowChunk:
        """Read at most `most` rows."""
        ...

    def close(self) -> None:
        """Close the file."""
        ...
