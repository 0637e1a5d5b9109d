"""The owner of a spool's folder: one process writes to it, and one sends what is in it."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING

from ..._core.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path
    from typing import Self

with suppress(ImportError):  # Windows has none
    import fcntl

_held: set[Path] = set()
"""The locks of this process: the system's own do not exclude it."""


class Lock:
    """A lock on a file, which ends with its process; a forked child does not have it."""

    def __init__(self, folder: Path, role: str) -> None:
        self.path = folder.resolve() / f"{role}.lock"
        self._role = role
        self._file = -1
        self._process = 0

    def acquire(self) -> Self:
        """Take the lock. Raises `ConfigError` if another process or another object has it."""
        if "fcntl" not in globals():
            raise ConfigError("a spool needs POSIX file locks, which this system does not have")
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if self.path in _held:
            raise self._is_taken(f"this process ({os.getpid()})")
        file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            told = os.pread(file, 20, 0).decode("ascii", "replace").strip() or "unknown"
            os.close(file)
            raise self._is_taken(f"process {told}") from error
        os.truncate(file, 0)
        os.pwrite(file, f"{os.getpid()}\n".encode(), 0)
        self._file, self._process = file, os.getpid()
        _held.add(self.path)
        return self

    def _is_taken(self, owner: str) -> ConfigError:
        verb = "writes to" if self._role == "writer" else "sends"
        return ConfigError(
            f"the spool {str(self.path.parent)!r} is in use: {owner} {verb} it; give each process a "
            "folder of its own, or stop that one"
        )

    def release(self) -> None:
        """Give the lock back."""
        if self._file < 0:
            return
        _held.discard(self.path)
        if self._process == os.getpid():
            with suppress(OSError):
                os.close(self._file)
        self._file = -1


def owner_of(folder: Path, role: str) -> int | None:
    """Return the id of the process that holds a lock; `None` if nobody does."""
    path = folder / f"{role}.lock"
    if not path.exists():
        return None
    if path.resolve() in _held:
        return os.getpid()
    file = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return int(os.pread(file, 20, 0).strip() or b"0")
    finally:
        os.close(file)
    return None
