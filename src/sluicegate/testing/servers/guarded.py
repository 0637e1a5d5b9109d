"""A temporary folder that, like the servers inside it, does not outlive its process."""

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

    If this process ends without `remove`, even by a signal, the guard kills every process that
    works in the folder, and removes the folder.

    Args:
        prefix: prefix of the folder's name.
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
        """Remove the folder, then end the guard. No process may work there. Idempotent."""
        shutil.rmtree(self.path, ignore_errors=True)
        self.guard.kill()
        self.guard.wait()
