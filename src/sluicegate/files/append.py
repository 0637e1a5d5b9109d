"""An append-only file with one writing process at a time. Every call blocks, so it runs in a
thread.

1. A *chunk* is the content of one append, in one piece. A failed append is undone; if that fails,
   the outcome is unknown.
2. An unfinished line, left by a killed process, is moved to a file next to it when
   the file is opened. Whole lines of a chunk may remain, although their items were never reported
   as delivered.
3. The lock is on a separate file, which is kept: logrotate renames the file itself.
4. Other programs may rename, remove or truncate the file, as logrotate does. Before each chunk, a
   file that is no longer at its path, or whose size differs from the one this process left, is
   reopened. After each chunk, a file removed in the meantime is replaced by a new one, which gets
   the chunk. A file truncated in the meantime makes the outcome unknown: the chunk may be in the
   copy, or nowhere.
5. After a failed fsync the content of the disk is unknown, and a second fsync would not reveal it.
   The file is reopened before the next chunk.
6. The lock and the torn pieces are never written through a symbolic link. The file itself may be
   one, unless `follows` forbids it.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
from stat import S_ISREG
from typing import TYPE_CHECKING

from .._core.checks import bad
from .._core.errors import ConfigError, RefusedError, UnavailableError, UnknownOutcomeError
from .repair import whole_lines

if TYPE_CHECKING:
    from pathlib import Path


logger = logging.getLogger("sluicegate.files")

_TORN = "%s ended in the middle of a line; its %d bytes have been moved to %s"
_SHORTER = (
    "%s was truncated by another program, from %d to %d bytes; lines that were appended "
    "between its copy and its truncation are lost. Rotate by renaming"
)
_FLAGS = os.O_CREAT | os.O_CLOEXEC
_TRIES = 5
"""Attempts to append a chunk to a file that other programs remove."""
_LOCK_FLAGS = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_LOCK_TRIES = 5
"""Attempts to lock a lock file that another program removes."""


class AppendFile:
    """An open file. Not thread-safe.

    `fsync` is `always`, `close` or `never`; `follows` allows a symbolic link; `mode` is that of a new
    file, before the umask.
    """

    def __init__(self, path: Path, *, fsync: str, follows: bool = True, mode: int = 0o666) -> None:
        self._path = path
        self._fsync = fsync
        self._link = 0 if follows else os.O_NOFOLLOW
        self._mode = mode
        self._lock = FileLock(path)
        self._file: int | None = None
        self._end = 0
        """The size after this process's last write."""

    def open(self) -> None:
        """Lock the file and repair its end.

        Raises `ConfigError` for a file in use or of another kind, and `OSError`.
        """
        try:
            self._lock.take()
            self._begin()
        except BaseException:
            self.close()
            raise

    def append(self, chunk: bytes) -> None:
        """Append all of `chunk`, or nothing.

        Raises `OSError`, `RefusedError` and `UnavailableError` if nothing was appended, and
        `UnknownOutcomeError` if a part may have been.
        """
        for _ in range(_TRIES):
            file = self._ready()
            if self._append(file, chunk):
                return
        raise UnavailableError(f"{self._path} is removed by another program whenever it is written")

    def close(self) -> None:
        """Close the file and release the lock. Idempotent.

        Raises `OSError` if the content may not be on the disk.
        """
        file, self._file = self._file, None
        try:
            if file is not None:
                self._close_file(file)
        finally:
            self._lock.release()

    # -- between chunks ----------------------------------------------------------------------------

    def _ready(self) -> int:
        self._lock.keep()
        file = self._file
        if file is not None and not self._is_as_left(file):
            self._file = None
            self._close_file(file)
            file = None
        if file is None:
            file = self._begin()
        return file

    def _is_as_left(self, file: int) -> bool:
        size = os.fstat(file).st_size
        if size < self._end:
            logger.warning(_SHORTER, self._path, self._end, size)
        return size == self._end and _is_at(file, self._path)

    def _begin(self) -> int:
        flags = os.O_RDWR | os.O_APPEND | os.O_NONBLOCK | self._link | _FLAGS
        file = os.open(self._path, flags, self._mode)
        try:
            self._end = _repair(file, self._path)
            if self._fsync != "never":
                _sync_folder(self._path.parent)
        except BaseException:
            os.close(file)
            raise
        self._file = file
        return file

    # -- one chunk ---------------------------------------------------------------------------------

    def _append(self, file: int, chunk: bytes) -> bool:
        """Append the chunk; return `False` if another program has removed the file."""
        path = self._path
        try:
            end = append(file, chunk, self._end)
        except NotUndoneError as error:
            self._give_up(file)
            raise UnknownOutcomeError(f"{path}: {error}") from error.__cause__
        self._end = end
        if self._fsync == "always":
            self._sync(file)
        found = os.fstat(file)
        if found.st_size < end:
            raise UnknownOutcomeError(
                f"{path} was truncated by another program while the lines were appended"
            )
        return found.st_nlink > 0 or _is_at(file, path)

    def _sync(self, file: int) -> None:
        try:
            os.fsync(file)
        except OSError as error:
            self._give_up(file)
            raise UnknownOutcomeError(
                f"the lines are in {self._path}, but perhaps not on its disk ({error})"
            ) from error

    def _give_up(self, file: int) -> None:
        self._file = None
        os.close(file)

    def _close_file(self, file: int) -> None:
        try:
            if self._fsync == "close":
                os.fsync(file)
        finally:
            os.close(file)


def _repair(file: int, path: Path) -> int:
    """Move an unfinished end aside and return the file's size."""
    found = os.fstat(file)
    if not S_ISREG(found.st_mode):
        raise bad("path", str(path), "is not a plain file")
    whole = whole_lines(file)
    if whole < found.st_size:
        aside = path.with_name(f"{path.name}.torn")
        _save(aside, os.pread(file, found.st_size - whole, whole), found.st_mode & 0o666)
        os.ftruncate(file, whole)
        os.fsync(file)
        logger.warning(_TORN, path, found.st_size - whole, aside)
    return whole


def _save(path: Path, torn: bytes, mode: int) -> None:
    file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | _FLAGS, mode)
    try:
        append(file, torn, os.fstat(file).st_size)
        os.fsync(file)
    finally:
        os.close(file)


def _is_at(file: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file), path.stat())
    except FileNotFoundError:
        return False


def _sync_folder(folder: Path) -> None:
    """Sync the folder: a new name is on the disk only if its folder is."""
    opened = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


# -- the end of a file -----------------------------------------------------------------------------


class NotUndoneError(Exception):
    """A part of a chunk may have remained in the file."""


def append(file: int, chunk: bytes, end: int) -> int:
    """Append all of `chunk` to a file of `end` bytes; return the new end.

    After `OSError` no part of the chunk is in the file. Raises `NotUndoneError` if that cannot be
    achieved.
    """
    left = memoryview(chunk)
    try:
        while left:
            left = left[os.write(file, left) :]
    except OSError:
        try:
            if os.fstat(file).st_size > end:  # not if another program has truncated it
                os.ftruncate(file, end)
        except OSError as error:
            told = f"a part of the lines may be in the file, and could not be removed ({error})"
            raise NotUndoneError(told) from error
        raise
    return os.lseek(file, 0, os.SEEK_CUR)  # of the last byte, wherever it was appended


# -- the lock --------------------------------------------------------------------------------------


class FileLock:
    """The lock of `path`, once it is taken; excludes other processes and other sinks. Not thread-safe.

    1. The lock is an empty file of its own, since logrotate renames the file itself. The
       operating system releases it when the process ends.
    2. If the lock file was removed, or its folder replaced, another process could lock a new one. So
       before each write, the holder checks that its lock file is still in place, and otherwise locks
       the file that is.
    3. It is never opened through a symbolic link.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._beside = path.with_name(path.name + ".lock")
        self._file: int | None = None

    def take(self) -> None:
        """Lock the file. Raises `ConfigError` if another process or sink has locked it, and
        `OSError`.
        """
        for _ in range(_LOCK_TRIES):
            self._file = self._lock_file()
            if self._is_in_place(self._file):
                return
            self.release()  # it was removed before it was locked
        text = "another program removes the lock file again and again"
        raise OSError(errno.EAGAIN, text, str(self._beside))

    def keep(self) -> None:
        """Lock the file again if the lock file was removed or replaced.

        Raises `RefusedError` if another process or sink has locked it meanwhile, and `OSError`.
        """
        if self._file is not None and self._is_in_place(self._file):
            return
        self.release()
        try:
            self.take()
        except ConfigError as error:
            raise RefusedError(
                f"{self._beside} was removed, and another process or sink has locked {self._path}",
                repair=f"stop the other writer of {self._path}, or give each a file of its own",
            ) from error

    def release(self) -> None:
        """Release the lock. Idempotent."""
        file, self._file = self._file, None
        if file is not None:
            os.close(file)

    def _lock_file(self) -> int:
        file = os.open(self._beside, _LOCK_FLAGS, 0o666)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(file)
            raise bad(
                "path",
                str(self._path),
                "another process, or another sink, is writing to it; give each a file of its own "
                "(processes: per_process=True)",
            ) from error
        return file

    def _is_in_place(self, file: int) -> bool:
        try:
            return os.path.samestat(os.fstat(file), self._beside.lstat())
        except FileNotFoundError:
            return False
