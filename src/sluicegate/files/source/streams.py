"""The decompressed bytes of an open file. Blocks.

1. A truncated file is detected, and not taken for a shorter file: gzip has a trailer, zstd has
   frames.
2. A plain file has no such end. Its size and time at the end must be the same as when it was
   opened.
"""

from __future__ import annotations

import gzip
import io
import os
import zlib
from hashlib import blake2b
from typing import TYPE_CHECKING

from ..client.repair import whole_frames
from .errors import BrokenFile
from .identity import Look, difference
from .places import End, Mark

if TYPE_CHECKING:
    from pathlib import Path
    from typing import BinaryIO

    from .forms import Compression
    from .identity import Recorded

BEFORE = 1 << 10
"""Number of bytes before a row that the digest of its mark covers."""
_BUFFER = 1 << 16


class FileBytes:
    """A file opened for reading and checked against its record.

    Raises `BrokenFile` if the file differs, and `OSError`.
    """

    def __init__(
        self, path: Path, recorded: Recorded, compression: Compression | None, *, follow: bool
    ) -> None:
        self._path = path
        self._compression = compression
        self._follow = follow
        self.raw: BinaryIO = path.open("rb")
        try:
            may_grow = follow or compression is not None
            self.check(difference(recorded, self.raw.fileno(), may_grow=may_grow))
            self._look = Look.at(os.fstat(self.raw.fileno()))
            self._stream = self._decompressed()
        except BaseException:
            self.raw.close()
            raise

    @staticmethod
    def check(told: str | None) -> None:
        """Raise `BrokenFile` if the file differs from its record."""
        if told is not None:
            raise BrokenFile(
                f"{told}, so the stored position may be invalid; restore its old content, or "
                "read it as a new file, with another name or subscription"
            )

    @property
    def is_plain(self) -> bool:
        """Whether the file is uncompressed."""
        return self._compression is None

    def _decompressed(self) -> BinaryIO:
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

    def seek(self, mark: Mark) -> None:
        """Continue at a mark. Raises `BrokenFile` if the bytes before it have changed."""
        if self._mark_digest(mark.byte) != mark.digest:
            self.check("its content before the stored position has changed")
        self.raw.seek(mark.byte)

    def back(self, byte: int) -> None:
        """Continue at this byte of a plain file."""
        self.raw.seek(byte)

    def mark(self, row: int, byte: int) -> Mark | None:
        """Return the mark of a row that begins here."""
        return Mark(row, byte, self._mark_digest(byte)) if self.is_plain else None

    def _mark_digest(self, byte: int) -> str:
        start = max(0, byte - BEFORE)
        before = os.pread(self.raw.fileno(), byte - start, start)
        return blake2b(before, digest_size=8).hexdigest()

    def end(self) -> End:
        """Check that this is the end of the complete file. Raises `BrokenFile`."""
        file = self.raw.fileno()
        if self._compression == "zstd" and whole_frames(file) != os.fstat(file).st_size:
            raise BrokenFile("it was cut off: its last zstd frame is incomplete")
        now = Look.at(os.fstat(file))
        if (now.size, now.modified) != (self._look.size, self._look.modified):
            self.check("it was written to while it was read")
        return End(self._look.size, self._look.modified)

    def check_place(self, byte: int) -> None:
        """Check that a followed file was not replaced. Raises `BrokenFile` and `OSError`."""
        now = self._path.stat()
        if now.st_ino != self._look.file or now.st_size < byte:
            self.check("it was replaced or cut while it was followed")

    def close(self) -> None:
        """Close the file."""
        self.raw.close()
