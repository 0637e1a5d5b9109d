"""The owner of a spool's folder: one process writes items to it, and one sends them."""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from ..._core.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from typing import Self

if sys.platform != "win32":
    import fcntl

_held: dict[Path, int] = {}
"""The process that took each lock: the system's own do not exclude it, and a child inherits this."""


class Lock:
    """A lock on a file, which ends with its process; a forked child does not have it."""

    def __init__(self, folder: Path, role: str) -> None:
        self.path = folder.resolve() / f"{role}.lock"
        self.role = role
        self._file = -1
        self._process = 0

    def acquire(self) -> Self:
        """Take the lock, in a `turn`. Raises `ConfigError` if another process or object has it."""
        if _held.get(self.path) == os.getpid():
            raise self._is_taken(f"this process ({os.getpid()})")
        file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            told = os.pread(file, 20, 0).decode("ascii", "replace").strip() or "unknown"
            os.close(file)
            raise self._is_taken(f"process {told}") from error
        with suppress(OSError):  # a full disk: only messages need it
            os.truncate(file, 0)
            os.pwrite(file, f"{os.getpid()}\n".encode(), 0)
        self._file, self._process = file, os.getpid()
        _held[self.path] = self._process
        return self

    def _is_taken(self, owner: str) -> ConfigError:
        verb = "writes to" if self.role == "writer" else "sends"
        return ConfigError(
            f"the spool {str(self.path.parent)!r} is in use: {owner} {verb} it; give each process a "
            "folder of its own, or stop that one"
        )

    def release(self) -> None:
        """Give the lock back."""
        if self._file < 0:
            return
        if self._process == os.getpid():
            del _held[self.path]
            with suppress(OSError):
                os.close(self._file)
        self._file = -1


@contextmanager
def turn(folder: Path) -> Iterator[None]:
    """Wait for the only turn to change which files there are, while owners change."""
    if "fcntl" not in globals():
        raise ConfigError("a spool needs POSIX file locks, which this system does not have")
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    file = os.open(
        folder / "turn.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600
    )
    try:
        fcntl.flock(file, fcntl.LOCK_EX)  # unlike lockf, it excludes other threads too
        yield
    finally:
        fcntl.flock(file, fcntl.LOCK_UN)  # a forked child may have the file open
        os.close(file)


def owner_of(folder: Path, role: str) -> int | None:
    """Return the id of the process that holds a lock; `None` if it is free."""
    path = folder / f"{role}.lock"
    if not path.exists():
        return None
    if _held.get(path.resolve()) == os.getpid():
        return os.getpid()
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        fcntl.lockf(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return int(os.pread(file, 20, 0).strip() or b"0")
    finally:
        os.close(file)
    return None
