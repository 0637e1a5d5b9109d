"""The end of a file that another program may truncate at any moment, as logrotate's `copytruncate`
does. Everything here blocks.

1. The file is open with `O_APPEND`, so the descriptor's offset after a write tells where its bytes
   went, whatever the size is by then.
2. The pieces of one chunk must be adjacent, and the first one must begin at the end that the caller
   knows, or at 0 in a file that was emptied. Otherwise the file was changed in between, and what is
   left of the chunk is taken back.
3. Taking back never leaves a file longer than it was. `ftruncate` would lengthen one that was
   truncated since its size was read: the bytes that it adds are NULs, which are recognized and cut
   off.
"""

from __future__ import annotations

import errno
import os

_MARK = 64
"""How many bytes before a cut are compared."""
_TRIES = 10
_BLOCK = 1 << 16


class NotTakenBackError(Exception):
    """A part of a chunk may be in the file."""


def append(file: int, chunk: bytes, end: int) -> int | None:
    """Append all of `chunk` in one piece behind `end`; return the offset behind it, or `None` if
    the file was changed meanwhile.

    After `None` and after `OSError` nothing of the chunk is in the file. Raises `NotTakenBackError`
    where that cannot be achieved.
    """
    start, at, left = None, end, memoryview(chunk)
    while left:
        try:
            count = os.write(file, left)
        except OSError:
            if start is not None:
                _take_back(file, start)
            raise
        behind = os.lseek(file, 0, os.SEEK_CUR)
        begun = behind - count
        if begun != at and (start is not None or begun):
            _take_back(file, begun)
            return None
        start = begun if start is None else start
        at, left = behind, left[count:]
        if (
            left and os.fstat(file).st_size != at
        ):  # the rest of a line must not come alone into a file that was emptied
            _take_back(file, begun)
            return None
    return at


def cut(file: int, size: int) -> None:
    """Remove everything from the offset `size` on. A file that is shorter by now is left as it is.
    Raises `OSError`.
    """
    for _ in range(_TRIES):
        before = _mark(file, size)
        if os.fstat(file).st_size <= size:
            return
        os.ftruncate(file, size)
        if not any(before) or any(after := _mark(file, size)) or not after:
            return
        size = _without_zeros(file, size)
    raise OSError(errno.EAGAIN, "another program truncates the file again and again")


def _take_back(file: int, start: int) -> None:
    try:
        cut(file, start)
    except OSError as error:
        message = f"a part of the lines may be in the file, and could not be taken back ({error})"
        raise NotTakenBackError(message) from error


def _mark(file: int, size: int) -> bytes:
    start = max(0, size - _MARK)
    return os.pread(file, size - start, start)


def _without_zeros(file: int, size: int) -> int:
    """The offset behind the last byte before `size` that is not NUL."""
    while size > 0:
        start = max(0, size - _BLOCK)
        kept = os.pread(file, size - start, start).rstrip(b"\0")
        if kept:
            return start + len(kept)
        size = start
    return 0
