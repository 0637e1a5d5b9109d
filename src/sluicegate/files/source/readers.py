"""Readers of NDJSON and CSV, and the decompressed bytes of a file. Every call blocks.

1. Rows are numbered from 0: lines of NDJSON, where empty lines have a number and no row, and rows of
   CSV after the header, which may have several lines. Earlier rows than the first one are read and
   skipped.
2. A line of NDJSON is a row, unchanged. Line ends and a byte order mark at the start are not part of
   it.
3. A row of CSV is a `dict`, like that of `csv.DictReader`. Quoting is strict by default: an unclosed
   quote is damage, and does not swallow the rest of the file. A row with bytes outside of the
   encoding is an `UndecodableRow`; it ends where it would end if they were letters.
4. A truncated file is detected, and not taken for a shorter file: gzip has a trailer, zstd has
   frames. A plain file has no such end, so its size and time must still be the recorded ones.
"""

from __future__ import annotations

import csv
import gzip
import io
import os
import zlib
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from ..._core.errors import SluicegateError
from ..repair import whole_frames
from .finding import difference

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path
    from typing import BinaryIO

    from .finding import Compression, Recorded


CHUNK_BYTES = 1 << 20
"""Size of a chunk in bytes of rows."""
PASSED_BYTES = 64 << 20
"""Maximum number of bytes to skip in one call on the way to the first row, to keep a close fast."""
BOM = b"\xef\xbb\xbf"
_BUFFER = 1 << 16
"""Bytes of a buffer for decompressed content."""
SHOWN = 5
"""Maximum number of files that a message names."""


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
    is_end: bool = False
    """Whether the file has no more rows."""
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


# -- NDJSON ----------------------------------------------------------------------------------------


def too_long(row: int, most: int) -> BrokenFile:
    """Build the error for a row over the limit."""
    return BrokenFile(f"row {row} is longer than max_row_bytes={most}")


class LineReader:
    """Reads lines from a start row on."""

    rows = None

    def __init__(self, file: FileBytes, start: int, *, most_bytes: int) -> None:
        self._file = file
        self._start = start
        self._row = 0
        self._most_bytes = most_bytes

    def read(self, most: int) -> RowChunk:
        """Read the next lines."""
        rows: list[tuple[int, object]] = []
        is_end, broken = False, None
        try:
            is_end = self._read(rows, most)
        except (BrokenFile, OSError) as error:
            broken = str(error)
        return RowChunk(rows, max(self._row, self._start), is_end, broken)

    def _read(self, rows: list[tuple[int, object]], most: int) -> bool:
        size = passed = 0
        while len(rows) < most and size < CHUNK_BYTES and passed < PASSED_BYTES:
            line = self._file.line(self._most_bytes + 2)
            is_last = line[-1:] != b"\n"
            value = line[:-2] if line[-2:] == b"\r\n" else line.removesuffix(b"\n")
            if self._row == 0:
                value = value.removeprefix(BOM)
            if len(value) > self._most_bytes:
                raise too_long(self._row, self._most_bytes)
            if is_last:
                self._file.check_end()
            if value and self._row >= self._start:
                rows.append((self._row, value))
                size += len(value)
            if line:
                self._row += 1
            if is_last:
                return True
            passed += len(line)
        return False

    def close(self) -> None:
        """Close the file."""
        self._file.close()


# -- CSV -------------------------------------------------------------------------------------------


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
        column: str | None,
    ) -> None:
        self._file = file
        self._start = start
        self._row = self._size = 0
        self._most_bytes = most_bytes
        self._column = column
        self._is_end = False
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
                self._file.check_end()
                self._is_end = True
            if is_first:
                line, is_first = line.removeprefix(BOM), False
            self._size += len(line)
            if self._size > self._most_bytes:
                raise too_long(self._row, self._most_bytes)
            if line:
                self._raw.append(line)
                yield self._decode(line)
            if self._is_end:
                return

    def _decode(self, line: bytes) -> str:
        try:
            return line.decode()
        except UnicodeDecodeError as error:
            self._error = error
            return line.decode(errors="surrogateescape")

    def read(self, most: int) -> RowChunk:
        """Read the next rows."""
        rows: list[tuple[int, object]] = []
        is_end, broken = False, None
        try:
            is_end = self._read(rows, most)
        except (BrokenFile, OSError) as error:
            broken = str(error)
        except (csv.Error, UnicodeDecodeError) as error:
            broken = f"row {self._row} is not CSV in UTF-8 ({error})"
        next_row = max(self._row, self._start)
        return RowChunk(rows, next_row, is_end, broken)

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


# -- bytes -----------------------------------------------------------------------------------------


class FileBytes:
    """A file opened for reading and checked against its record.

    Raises `BrokenFile` if the file differs, and `OSError`.
    """

    def __init__(self, path: Path, recorded: Recorded, compression: Compression | None) -> None:
        self._recorded = recorded
        self._compression = compression
        self.raw: BinaryIO = path.open("rb")
        try:
            self._check(difference(recorded, os.fstat(self.raw.fileno())))
            self._stream = self._decompress()
        except BaseException:
            self.raw.close()
            raise

    @staticmethod
    def _check(told: str | None) -> None:
        """Raise `BrokenFile` if the file differs from its record."""
        if told is not None:
            raise BrokenFile(
                f"{told}, so the stored position may be invalid; restore its old content and "
                "time, or read it as a new file, with another name or subscription"
            )

    def _decompress(self) -> BinaryIO:
        if self._compression == "gzip":
            return io.BufferedReader(gzip.GzipFile(fileobj=self.raw), _BUFFER)
        if self._compression == "zstd":
            import zstandard  # an optional dependency

            opened = zstandard.ZstdDecompressor().stream_reader(
                self.raw, read_across_frames=True, closefd=False
            )
            return io.BufferedReader(opened, _BUFFER)
        return self.raw

    def line(self, most: int) -> bytes:
        """Read the next line with its line end, up to a limit in bytes. Raises `BrokenFile`."""
        try:
            return self._stream.readline(most)
        except EOFError as error:
            raise BrokenFile("it was cut off: its compressed data ends too early") from error
        except (zlib.error, OSError) as error:
            raise BrokenFile(f"it cannot be read ({error})") from error
        except Exception as error:
            if type(error).__name__ != "ZstdError":
                raise
            raise BrokenFile(f"it cannot be read ({error})") from error

    def check_end(self) -> None:
        """Check that this is the end of the complete file. Raises `BrokenFile`."""
        status = os.fstat(self.raw.fileno())
        if self._compression == "zstd" and whole_frames(self.raw.fileno()) != status.st_size:
            raise BrokenFile("it was cut off: its last zstd frame is incomplete")
        if difference(self._recorded, status) is not None:
            self._check("it was written to while it was read")

    def close(self) -> None:
        """Close the file."""
        self.raw.close()


# -- errors ----------------------------------------------------------------------------------------


class UnreadFiles(SluicegateError):
    """A source of files has ended, and some files could not be read to their ends.

    The rows before the damage and all other files were delivered. `files` has each path with the
    reason.
    """

    def __init__(self, files: Mapping[str, str]) -> None:
        super().__init__(f"not read to the end: {list_reasons(files)}")
        self.files = dict(files)

    def __reduce__(self) -> tuple[type[UnreadFiles], tuple[dict[str, str]]]:
        return type(self), (self.files,)


class BrokenFile(Exception):
    """A file cannot be read further; the message is the reason."""


def list_reasons(files: Mapping[str, str]) -> str:
    """Format paths with their reasons, up to a limit."""
    told = [f"{path} ({reason})" for path, reason in sorted(files.items())[:SHOWN]]
    more = len(files) - len(told)
    return "; ".join(told) + (f"; and {more} more" if more else "")
