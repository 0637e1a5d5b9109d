"""An append-only file with one writing process at a time. Every call blocks, so it runs in a
thread.

1. A *chunk* is the content of one append, in one piece. A failed append is undone; if that fails,
   the outcome is unknown.
2. An unfinished line or zstd frame, left by a killed process, is moved to a file next to it when
   the file is opened. Whole lines of a chunk may remain, although their items were never reported
   as delivered.
3. The lock is on a separate file, which is kept: rotation renames the file itself.
   Rotation happens only between chunks.
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
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from stat import S_ISREG
from typing import TYPE_CHECKING

from .._core.checks import bad
from .._core.errors import ConfigError, RefusedError, UnavailableError, UnknownOutcomeError
from .repair import is_zstd, whole_frames, whole_lines

if TYPE_CHECKING:
    from pathlib import Path


logger = logging.getLogger("sluicegate.files")

_TORN = "%s ended in the middle of a %s; its %d bytes have been moved to %s"
_SHORTER = (
    "%s was truncated by another program, from %d to %d bytes; lines that were appended "
    "between its copy and its truncation are lost. "
    "Rotate by renaming, or with rotate_bytes= or rotate_every="
)
_FLAGS = os.O_CREAT | os.O_CLOEXEC
_TRIES = 5
"""Attempts to append a chunk to a file that other programs change."""
_MARK = 64
"""Number of bytes that are compared before a cut."""
_CUTS = 10
"""Attempts to truncate a file that another program truncates as well."""
_BLOCK = 1 << 16
"""Bytes that are read by one call to find the last byte that is not NUL."""
_LOCK_FLAGS = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_LOCK_TRIES = 5
"""Attempts to lock a lock file that another program removes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSettings:
    """The user's settings of a file."""

    path: Path
    is_zstd: bool
    fsync: str
    """`always`, `close` or `never`."""
    rotate_bytes: int | None
    rotate_every: float | None
    follows: bool = True
    """Whether the file may be a symbolic link."""
    mode: int = 0o666
    """The mode of a new file, before the umask."""

    def beside(self, ending: str) -> Path:
        """Return the path of a file in the same folder."""
        return self.path.with_name(self.path.name + ending)

    def period(self, wall: float) -> int | None:
        """Return the number of the rotation period (of `rotate_every` seconds) at time `wall`."""
        return None if self.rotate_every is None else int(wall // self.rotate_every)

    def archive(self, wall: float) -> Path:
        """Return an unused name for the file rotated at time `wall`, behind all earlier ones.

        If the clock was set back, it has the time of the last one, and the next number.
        """
        stem, ending = stem_and_ending(self.path)
        when, number = datetime.fromtimestamp(wall, UTC).strftime("%Y%m%dT%H%M%SZ"), 0
        if (last := max(_archives(self.path), default=None)) is not None and last[0] >= when:
            when, number = last[0], last[1] + 1
        return self.path.with_name(f"{stem}-{when}{f'-{number}' if number else ''}{ending}")


def stem_and_ending(path: Path) -> tuple[str, str]:
    """Return the text before and after the time in a rotated file's name."""
    suffixes = path.suffixes
    ending = "".join(suffixes[-2:] if suffixes[-1:] == [".zst"] else suffixes[-1:])
    return path.name.removesuffix(ending), ending


def archives(path: Path) -> list[Path]:
    """Return the rotated files of `path`, oldest first."""
    return [each for *_, each in sorted(_archives(path))]


def _archives(path: Path) -> list[tuple[str, int, Path]]:
    """Return the time, the number and the path of each rotated file."""
    stem, ending = stem_and_ending(path)
    pattern = re.compile(rf"{re.escape(stem)}-(\d{{8}}T\d{{6}}Z)(?:-(\d+))?{re.escape(ending)}")
    return [
        (match[1], int(match[2] or 0), each)
        for each in path.parent.iterdir()
        if (match := pattern.fullmatch(each.name))
    ]


class AppendFile:
    """An open file. Not thread-safe."""

    def __init__(self, settings: FileSettings) -> None:
        self._settings = settings
        self._lock = FileLock(settings.path)
        self._file: int | None = None
        self._end = 0
        """The size after this process's last write."""
        self._period: int | None = None

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

    def append(self, chunk: bytes, wall: float) -> None:
        """Append all of `chunk`, or nothing.

        Raises `OSError`, `RefusedError` and `UnavailableError` if nothing was appended, and
        `UnknownOutcomeError` if a part may have been.
        """
        for _ in range(_TRIES):
            file = self._ready(len(chunk), wall)
            if self._append(file, chunk, wall):
                return
        raise UnavailableError(
            f"{self._settings.path} is changed by another program whenever it is written"
        )

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

    def _ready(self, more: int, wall: float) -> int:
        self._lock.keep()
        file = self._file
        if file is not None and not self._is_as_left(file):
            self._file = None
            self._close_file(file)
            file = None
        if file is None:
            file = self._begin()
        if self._end and self._is_full(more, wall):
            file = self._rotate(file, wall)
        return file

    def _is_as_left(self, file: int) -> bool:
        size = os.fstat(file).st_size
        if size < self._end:
            logger.warning(_SHORTER, self._settings.path, self._end, size)
        return size == self._end and _is_at(file, self._settings.path)

    def _is_full(self, more: int, wall: float) -> bool:
        settings = self._settings
        if settings.rotate_bytes is not None and self._end + more > settings.rotate_bytes:
            return True
        return self._period != settings.period(wall)

    def _rotate(self, file: int, wall: float) -> int:
        self._file = None
        self._close_file(file)
        try:
            self._settings.path.rename(self._settings.archive(wall))
        except FileNotFoundError:
            if not self._settings.path.parent.is_dir():
                raise
            # another program has moved or removed the file in the meantime
        return self._begin()

    def _begin(self) -> int:
        settings = self._settings
        link = 0 if settings.follows else os.O_NOFOLLOW
        file = os.open(
            settings.path, os.O_RDWR | os.O_APPEND | os.O_NONBLOCK | link | _FLAGS, settings.mode
        )
        try:
            self._end = _repair(file, settings)
            if settings.fsync != "never":
                _sync_folder(settings.path.parent)
        except BaseException:
            os.close(file)
            raise
        self._period = settings.period(os.fstat(file).st_mtime)
        self._file = file
        return file

    # -- one chunk ---------------------------------------------------------------------------------

    def _append(self, file: int, chunk: bytes, wall: float) -> bool:
        """Append the chunk; return `False` if another program has changed or removed the file.

        In that case the file contains no part of the chunk.
        """
        path = self._settings.path
        try:
            end = append(file, chunk, self._end)
        except NotUndoneError as error:
            self._give_up(file)
            raise UnknownOutcomeError(f"{path}: {error}") from error.__cause__
        if end is None:
            return False
        self._end = end
        self._period = self._settings.period(wall)
        if self._settings.fsync == "always":
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
                f"the lines are in {self._settings.path}, but perhaps not on its disk ({error})"
            ) from error

    def _give_up(self, file: int) -> None:
        self._file = None
        os.close(file)

    def _close_file(self, file: int) -> None:
        try:
            if self._settings.fsync == "close":
                os.fsync(file)
        finally:
            os.close(file)


def _repair(file: int, settings: FileSettings) -> int:
    """Move an unfinished end aside and return the file's size."""
    found = os.fstat(file)
    if not S_ISREG(found.st_mode):
        raise bad("path", str(settings.path), "is not a plain file")
    if is_zstd(file) not in {None, settings.is_zstd}:
        rule = (
            "there is a file that is not zstd"
            if settings.is_zstd
            else "there is a file in zstd; pass compression='zstd' or another path"
        )
        raise bad("path", str(settings.path), rule)
    whole = whole_frames(file) if settings.is_zstd else whole_lines(file)
    if whole < found.st_size:
        aside = settings.beside(".torn")
        _save(aside, os.pread(file, found.st_size - whole, whole), found.st_mode & 0o666)
        cut(file, whole)
        os.fsync(file)
        logger.warning(
            _TORN,
            settings.path,
            "frame" if settings.is_zstd else "line",
            found.st_size - whole,
            aside,
        )
    return whole


def _save(path: Path, torn: bytes, mode: int) -> None:
    file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | _FLAGS, mode)
    try:
        if append(file, torn, os.fstat(file).st_size) is None:
            raise UnavailableError(f"{path} is changed by another program")
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


def append(file: int, chunk: bytes, end: int) -> int | None:
    """Append all of `chunk` in one piece at `end`; return the new end, or `None` if another program
    has changed the file in the meantime, as logrotate's `copytruncate` does.

    The file is open with `O_APPEND`, so the descriptor's offset after a write shows the place of
    its bytes, regardless of the current size. The pieces of the chunk must be adjacent, and the
    first one must begin at `end`, or at 0 in an emptied file. Otherwise the rest of the chunk is
    removed.

    After `None` and after `OSError` no part of the chunk is in the file. Raises `NotUndoneError` if
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
    """Truncate the file to `size`, unless it is shorter by now. Raises `OSError`.

    `ftruncate` lengthens a file that was truncated since its size was read: it adds NUL bytes, which
    are recognized here and cut off.
    """
    for _ in range(_CUTS):
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


# -- the lock --------------------------------------------------------------------------------------


class FileLock:
    """The lock of `path`, once it is taken; excludes other processes and other sinks. Not thread-safe.

    1. The lock is an empty file of its own, since the file itself is renamed by rotation. The
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
