"""A temporary folder that does not outlive its process, and neither do the servers inside it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from . import guard

PACKAGES = Path(__file__).parents[3]


class GuardedFolder:
    """A new folder and its guard.

    If this process ends without `remove`, by a signal too, the guard kills every process that works
    in the folder and removes it.

    Args:
        prefix: beginning of the folder's name.
    """

    def __init__(self, prefix: str) -> None:
        self.path = Path(tempfile.mkdtemp(prefix=prefix)).resolve()
        owner = self._owner = os.getpid()
        self.guard = subprocess.Popen(
            [sys.executable, "-SP", guard.__file__, str(owner), str(self.path)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,  # an inherited pipe would stay open until it ends
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(PACKAGES), *sys.path])},
        )

    @property
    def is_ours(self) -> bool:
        """Whether this process created it; a forked child must not touch it or its server."""
        return os.getpid() == self._owner

    def remove(self) -> None:
        """Remove it, then end the guard. Requires that no process works there. Idempotent."""
        shutil.rmtree(self.path, ignore_errors=True)
        self.guard.kill()
        self.guard.wait()
