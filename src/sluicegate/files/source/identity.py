"""Checks whether a file is still the recorded file. Blocks.

1. A file is recorded when it is found, before any row is read: its size, its modification time, and
   a digest of its first and last bytes.
2. Any difference is a change, because a position is meaningless for other content.
3. Two kinds of files may be longer than recorded: followed files, and compressed files, whose end
   is recognized, so that an incomplete copy can be completed. The recorded part must be unchanged. Their
   modification time is not compared: a file system sets it before the size when data is appended,
   so it may be new while the size is old.
"""

from __future__ import annotations

import os
from hashlib import blake2b
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from pathlib import Path

SAMPLE = 1 << 16
"""Bytes at each end that the digest covers."""


class Recorded(NamedTuple):
    """A file as it was when it was found."""

    path: str
    """Relative path with `/`."""
    size: int
    modified: int
    """Nanoseconds since the epoch."""
    digest: str


class Look(NamedTuple):
    """The status of a file. If it differs, the content may differ."""

    size: int
    modified: int
    changed: int
    file: int

    @classmethod
    def at(cls, status: os.stat_result) -> Look:
        """Build it from a status."""
        return cls(status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino)


def record(root: Path, path: str) -> Recorded:
    """Record a file. Raises `OSError`."""
    with (root / path).open("rb") as file:
        status = os.fstat(file.fileno())
        digest = _digest(file.fileno(), status.st_size)
        return Recorded(path, status.st_size, status.st_mtime_ns, digest)


def difference(recorded: Recorded, file: int, *, may_grow: bool) -> str | None:
    """Describe how an open file differs from the recorded one; `None` if it does not."""
    status = os.fstat(file)
    if status.st_size < recorded.size or (status.st_size > recorded.size and not may_grow):
        return f"it has {status.st_size} bytes now, and had {recorded.size} when it was found"
    if not may_grow and status.st_mtime_ns != recorded.modified:
        return "it was written to since it was found"
    if _digest(file, recorded.size) != recorded.digest:
        return "its content has changed since it was found"
    return None


def _digest(file: int, size: int) -> str:
    """Return the digest of both ends of the first `size` bytes."""
    last = max(0, size - SAMPLE)
    digest = blake2b(os.pread(file, min(size, SAMPLE), 0), digest_size=16)
    digest.update(os.pread(file, size - last, last))
    return digest.hexdigest()
