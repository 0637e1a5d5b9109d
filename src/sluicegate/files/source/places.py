"""A consumer's position and its place in the file. Pure.

1. The metadata of a stored position has two parts, separated by `|`: the source's part, and the
   consumer's map.
2. The source's part is `-ROW,BYTE,DIGEST` for a row at or before the position, the byte at which
   it begins and a digest of the bytes before it; `-` alone if no byte is known; or `=SIZE,TIME` for
   a file that was read to its end, with its size and time at that moment.
"""

from __future__ import annotations

from typing import NamedTuple

from ..._core.source import Position


class Mark(NamedTuple):
    """A row with a known place in the file."""

    row: int
    byte: int
    digest: str
    """Digest of the bytes before it."""


class End(NamedTuple):
    """The size and time of a file that was read to its end."""

    size: int
    modified: int


class FilePlace(NamedTuple):
    """A parsed stored position."""

    position: Position
    """The position as the consumer sees it."""
    mark: Mark | None = None
    end: End | None = None

    def stored(self) -> Position:
        """Return the position as the provider stores it."""
        if self.end is not None:
            own = f"={self.end.size},{self.end.modified}"
        else:
            own = "-" if self.mark is None else "-{},{},{}".format(*self.mark)
        return Position(self.position.offset, f"{own}|{self.position.metadata}")

    @classmethod
    def of(cls, stored: Position) -> FilePlace:
        """Parse a stored position. Raises `ValueError` for metadata of another kind of source."""
        if not stored.metadata:
            return cls(stored)
        own, divider, told = stored.metadata.partition("|")
        if not divider or own[:1] not in {"-", "="}:
            raise ValueError(f"the text {own[:20]!r} of a position is not from a source of files")
        position = Position(stored.offset, told)
        if own == "-":
            return cls(position)
        fields = own[1:].split(",")
        if own[0] == "=":
            return cls(position, end=End(*map(int, fields)))
        row, byte, digest = fields
        return cls(position, Mark(int(row), int(byte), digest))
