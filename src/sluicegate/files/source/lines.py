"""Reads rows of NDJSON: each line is a row, unchanged. Blocks.

1. A row's number is the number of its line, starting at 0. Empty lines have a number and no row.
2. Line ends and a byte order mark at the start are not part of a row. A last line without a line
   end is a row, except in a followed file, where the next append may continue it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .chunks import CHUNK_BYTES, PASSED_BYTES, RowChunk
from .errors import BrokenFile

if TYPE_CHECKING:
    from .places import End, Mark
    from .streams import FileBytes

BOM = b"\xef\xbb\xbf"


def too_long(row: int, most: int) -> BrokenFile:
    """Build the error for a row over the limit."""
    return BrokenFile(f"row {row} is longer than max_row_bytes={most}")


class LineReader:
    """Reads lines from a start row on, using a mark close to it if there is one."""

    rows = None

    def __init__(
        self, file: FileBytes, start: int, mark: Mark | None, *, most_bytes: int, follow: bool
    ) -> None:
        self._file = file
        self._start = start
        self._row = self._byte = 0
        if mark is not None and file.is_plain:
            file.seek(mark)
            self._row, self._byte = mark.row, mark.byte
        self._most_bytes = most_bytes
        self._follow = follow
        self._waits = False

    def read(self, most: int) -> RowChunk:
        """Read the next lines."""
        rows: list[tuple[int, object]] = []
        end: End | None = None
        broken: str | None = None
        try:
            end = self._read(rows, most)
        except (BrokenFile, OSError) as error:
            broken = str(error)
        mark = self._file.mark(self._row, self._byte) if broken is None else None
        return RowChunk(rows, max(self._row, self._start), mark, end, self._waits, broken)

    def _read(self, rows: list[tuple[int, object]], most: int) -> End | None:
        file, limit = self._file, self._most_bytes + 2
        self._waits = False
        if self._follow:
            file.check_place(self._byte)
        size, until = 0, self._byte + PASSED_BYTES
        while len(rows) < most and size < CHUNK_BYTES and self._byte < until:
            line = file.line(limit)
            if line[-1:] != b"\n":
                return self._last(line, rows)
            value = self._taken(line)
            if value and self._row > self._start:
                rows.append((self._row - 1, value))
                size += len(value)
        return None

    def _taken(self, line: bytes) -> bytes:
        """Move past a line and return its value."""
        value = line[:-2] if line[-2:] == b"\r\n" else line.removesuffix(b"\n")
        if self._row == 0:
            value = value.removeprefix(BOM)
        if len(value) > self._most_bytes:
            raise too_long(self._row, self._most_bytes)
        self._row += 1
        self._byte += len(line)
        return value

    def _last(self, line: bytes, rows: list[tuple[int, object]]) -> End | None:
        """Handle a line without a line end: take it if complete; return the end of the file."""
        if len(line) > self._most_bytes:
            raise too_long(self._row, self._most_bytes)
        if self._follow:
            self._file.back(self._byte)
            self._waits = True
            return None
        end = self._file.end()
        value = self._taken(line) if line else b""
        if value and self._row > self._start:
            rows.append((self._row - 1, value))
        return end

    def close(self) -> None:
        """Close the file."""
        self._file.close()
