"""Reader of the lines of a file written by `FileSink`, compressed or not. Blocks."""

from __future__ import annotations

import io
import os
from typing import TYPE_CHECKING, Any, BinaryIO

from ...letters.store import StoreError
from ..client.repair import is_zstd, whole_frames, whole_lines

if TYPE_CHECKING:
    from collections.abc import Iterator


def lines(file: BinaryIO, length: int) -> Iterator[bytes]:
    """Yield the complete lines within a file's first `length` bytes. Raises `StoreError` if
    damaged.
    """
    file.seek(0)
    part: Any = _FilePrefix(file, length)
    if is_zstd(file.fileno()):
        import zstandard  # an optional dependency

        part = zstandard.ZstdDecompressor().stream_reader(part, read_across_frames=True)
        try:
            yield from _whole(part)
        except zstandard.ZstdError as error:
            raise StoreError(f"{file.name} is damaged: {error}") from error
        return
    yield from _whole(part)


def unfinished(file: BinaryIO) -> bytes:
    """Return the bytes after the last complete line, or after the last complete frame."""
    number = file.fileno()
    whole = whole_frames(number) if is_zstd(number) else whole_lines(number)
    return os.pread(number, os.fstat(number).st_size - whole, whole)


def _whole(part: Any) -> Iterator[bytes]:
    return (line for line in io.BufferedReader(part) if line.endswith(b"\n"))


class _FilePrefix(io.RawIOBase):
    """The first bytes of a file."""

    def __init__(self, file: BinaryIO, length: int) -> None:
        self._file = file
        self._left = length

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._file.read(min(len(buffer), self._left))
        self._left -= len(data)
        buffer[: len(data)] = data
        return len(data)
