"""Where a file is read: the position of the consumer, and what it means in the file. Pure.

1. The text beside a stored position has two parts, divided by `|`: the source's own, and the map of
   the consumer.
2. The source's part is `-ROW,BYTE,DIGEST` for a row at or before the position, the byte at which
   it begins and a digest of the bytes before it; `-` alone where no byte is known; or `=SIZE,TIME`
   for a file that is read to its end, which had that size and time then.
"""

from __future__ import annotations

from typing import NamedTuple

from ..._core.source import Position


class Mark(NamedTuple):
    """A row whose place in the file is known."""

    row: int
    byte: int
    digest: str
    """Of the bytes before it."""


class End(NamedTuple):
    """A file that was read to its end."""

    size: int
    modified: int


class FilePlace(NamedTuple):
    """A stored position, taken apart."""

    position: Position
    """As the consumer has it."""
    mark: Mark | None = None
    end: End | None = None

    def stored(self) -> Position:
        """As the provider has it."""
        if self.end is not None:
            own = f"={self.end.size},{self.end.modified}"
        else:
            own = "-" if self.mark is None else "-{},{},{}".format(*self.mark)
        return Position(self.position.offset, f"{own}|{self.position.metadata}")

    @classmethod
    def of(cls, stored: Position) -> FilePlace:
        """Take a stored position apart. Raises `ValueError` for text of another origin."""
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
