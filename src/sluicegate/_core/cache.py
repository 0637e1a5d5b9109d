"""Folders in the user's cache, each made once on a machine.

1. An existing folder is complete: it is made elsewhere and renamed. Concurrent calls for the same
   folder wait for the first.
2. A folder never changes: its name contains a digest of what determines its contents.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


def location() -> Path:
    """Return the cache of this user; it may not exist yet."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sluicegate"


def made_once(name: str, make: Callable[[Path], Path]) -> Path:
    """Return the folder `name` of the cache. Blocks while the first call makes it.

    Args:
        name: the folder's name, with a digest.
        make: creates the folder inside an empty temporary one, its argument, and returns its path.

    Raises:
        OSError: the cache cannot be written. Exceptions of `make` are passed on. In either case the
            folder does not exist afterwards.
    """
    cache = location()
    folder = cache / name
    if folder.exists():
        return folder
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            with tempfile.TemporaryDirectory(dir=cache) as aside:
                make(Path(aside)).rename(folder)
    return folder
