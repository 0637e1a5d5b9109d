"""Append to a file that another program may truncate at any moment. Every call blocks.

logrotate's `copytruncate` truncates files in this way.

1. The file is open with `O_APPEND`, so the descriptor's offset after a write shows the place of its
   bytes, regardless of the current size.
2. The pieces of one chunk must be adjacent, and the first one must begin at the end that the caller
   knows, or at 0 in an emptied file. Otherwise the file was changed in between, and the rest of the
   chunk is removed.
3. Undoing never makes a file longer. `ftruncate` would lengthen one that was truncated since its
   size was read: it adds NUL bytes, which are recognized and cut off.
"""

from __future__ import annotations

import errno
import os

_MARK = 64
"""Number of bytes that are compared before a cut."""
_TRIES = 10
_BLOCK = 1 << 16


class NotUndoneError(Exception):
    """A part of a chunk may have remained in the file."""


def append(file: int, chunk: bytes, end: int) -> int | None:
    """Append all of `chunk` in one piece at `end`; return the new end.

    Returns `None` if the file was changed in the meantime.

    After `None` and after `OSError` nothing of the chunk is in the file. Raises `NotUndoneError` if
    that cannot be achieved.
    """
    start, at, left = None, end, memoryview(chunk)
    while left:
        try:
            count = os.write(file, left)
        except OSError:
            if start is not None:
                _undo(file, start)
            raise
        behind = os.lseek(file, 0, os.SEEK_CUR)
        begun = behind - count
        if begun != at and (start is not None or begun):
            _undo(file, begun)
            return None
        start = begun if start is None else start
        at, left = behind, left[count:]
        if left and os.fstat(file).st_size != at:  # no partial line into an emptied file
            _undo(file, begun)
            return None
    return at


def cut(file: int, size: int) -> None:
    """Truncate the file to `size`, unless it is shorter by now. Raises `OSError`."""
    for _ in range(_TRIES):
        before = _mark(file, size)
        if os.fstat(file).st_size <= size:
            return
        os.ftruncate(file, size)
        if not any(before) or any(after := _mark(file, size)) or not after:
            return
        size = _without_zeros(file, size)
    raise OSError(errno.EAGAIN, "another program truncates the file again and again")


def _undo(file: int, start: int) -> None:
    try:
        cut(file, start)
    except OSError as error:
        message = f"a part of the lines may be in the file, and could not be removed ({error})"
        raise NotUndoneError(message) from error


def _mark(file: int, size: int) -> bytes:
    start = max(0, size - _MARK)
    return os.pread(file, size - start, start)


def _without_zeros(file: int, size: int) -> int:
    """Return the offset after the last byte before `size` that is not NUL."""
    while size > 0:
        start = max(0, size - _BLOCK)
        kept = os.pread(file, size - start, start).rstrip(b"\0")
        if kept:
            return start + len(kept)
        size = start
    return 0
