"""Reads rows of CSV as `dict`, like `csv.DictReader`. Blocks.

1. Rows are numbered from 0 after the header. A row may have several lines.
2. Quoting is strict by default: an unclosed quote is damage, and does not swallow the rest of the
   file.
3. A row with bytes outside of the encoding is an `UndecodableRow`; it ends where it would end if
   they were letters.
"""

from __future__ import annotations

import csv
from typing import TYPE_CHECKING, Any

from .chunks import CHUNK_BYTES, PASSED_BYTES, RowChunk, UndecodableRow
from .errors import BrokenFile
from .lines import BOM, too_long

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from .places import End
    from .streams import FileBytes


class CsvReader:
    """Reads the rows from a start row on. Earlier rows are read and skipped."""

    rows = None

    def __init__(
        self,
        file: FileBytes,
        start: int,
        *,
        most_bytes: int,
        options: Mapping[str, Any],
        encoding: str,
        column: str | None,
    ) -> None:
        self._file = file
        self._start = start
        self._row = self._size = 0
        self._most_bytes = most_bytes
        self._encoding = encoding
        self._column = column
        self._end: End | None = None
        self._error: UnicodeDecodeError | None = None
        """The error of a line of the current row."""
        self._raw: list[bytes] = []
        """The lines of the current row."""
        settings: dict[str, Any] = {"strict": True, **options}
        self._reader = csv.DictReader(self._lines(), **settings)

    def _lines(self) -> Iterator[str]:
        is_first = True
        while True:
            line = self._file.line(self._most_bytes + 1)
            if line[-1:] != b"\n":
                if len(line) > self._most_bytes:
                    raise too_long(self._row, self._most_bytes)
                self._end = self._file.end()
            if is_first:
                line, is_first = line.removeprefix(BOM), False
            self._size += len(line)
            if self._size > self._most_bytes:
                raise too_long(self._row, self._most_bytes)
            if line:
                self._raw.append(line)
                yield self._decoded(line)
            if self._end is not None:
                return

    def _decoded(self, line: bytes) -> str:
        try:
            return line.decode(self._encoding)
        except UnicodeDecodeError as error:
            self._error = error
            return line.decode(self._encoding, "surrogateescape")

    def read(self, most: int) -> RowChunk:
        """Read the next rows."""
        rows: list[tuple[int, object]] = []
        is_end, broken = False, None
        try:
            is_end = self._read(rows, most)
        except (BrokenFile, OSError) as error:
            broken = str(error)
        except (csv.Error, UnicodeDecodeError) as error:
            broken = f"row {self._row} is not CSV in {self._encoding} ({error})"
        next_row = max(self._row, self._start)
        return RowChunk(rows, next_row, end=self._end if is_end else None, broken=broken)

    def _read(self, rows: list[tuple[int, object]], most: int) -> bool:
        size = passed = 0
        self._check_header()
        while len(rows) < most and size < CHUNK_BYTES and passed < PASSED_BYTES:
            self._size, self._error, self._raw = 0, None, []
            value: object = next(self._reader, None)
            if value is None:
                return True
            if self._error is not None:
                value = UndecodableRow(self._error, b"".join(self._raw))
            if self._row >= self._start:
                rows.append((self._row, value))
                size += self._size
            passed += self._size
            self._row += 1
        return False

    def _check_header(self) -> None:
        names = self._reader.fieldnames
        if self._row == 0 and self._error is not None:
            raise self._error  # of the header: no row was read yet
        if names is not None and self._column is not None and self._column not in names:
            raise BrokenFile(f"it has no column {self._column!r}, which key= names")

    def close(self) -> None:
        """Close the file."""
        self._file.close()
