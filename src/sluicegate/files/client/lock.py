"""A lock file beside a file, which excludes other processes and other sinks. Every call blocks.

1. The lock is an empty file of its own, since the file itself is renamed by rotation. The operating
   system releases it when the process ends.
2. If the lock file was removed, or its folder replaced, another process could lock a new one. So
   before each write, the holder checks that its lock file is still in place, and otherwise locks the
   file that is.
3. It is never opened through a symbolic link.
"""

from __future__ import annotations

import errno
import fcntl
import os
from typing import TYPE_CHECKING

from ..._core.checks import bad
from ..._core.errors import ConfigError, RefusedError

if TYPE_CHECKING:
    from pathlib import Path

_FLAGS = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_TRIES = 5


class FileLock:
    """The lock of `path`, once it is taken. Not thread-safe."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._beside = path.with_name(path.name + ".lock")
        self._file: int | None = None

    def take(self) -> None:
        """Lock the file. Raises `ConfigError` if another process or sink has locked it, and
        `OSError`.
        """
        for _ in range(_TRIES):
            self._file = self._locked()
            if self._is_in_place(self._file):
                return
            self.release()  # it was removed before it was locked
        text = "another program removes the lock file again and again"
        raise OSError(errno.EAGAIN, text, str(self._beside))

    def keep(self) -> None:
        """Lock the file anew if the lock file was removed or replaced.

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

    def _locked(self) -> int:
        file = os.open(self._beside, _FLAGS, 0o666)
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
