"""A temporary folder that does not outlive the process that made it, and neither do the servers
that work in it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from . import _guard

PACKAGES = Path(__file__).parents[2]


class GuardedFolder:
    """A new folder and its guard. When this process ends without `remove`, by a signal too, the
    guard ends what works there and removes it.

    Args:
        prefix: the beginning of the folder's name.
    """

    def __init__(self, prefix: str) -> None:
        self.path = Path(tempfile.mkdtemp(prefix=prefix)).resolve()
        owner = self._owner = os.getpid()
        self.guard = subprocess.Popen(
            [sys.executable, "-SP", _guard.__file__, str(owner), str(self.path)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,  # a pipe of ours would stay open until it ends
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(PACKAGES), *sys.path])},
        )

    @property
    def is_ours(self) -> bool:
        """Whether this process made it. A forked child did not, and must leave it and its server
        alone.
        """
        return os.getpid() == self._owner

    def remove(self) -> None:
        """Remove it, and then end the guard. Nothing may work there any more. Twice is harmless."""
        shutil.rmtree(self.path, ignore_errors=True)
        self.guard.kill()
        self.guard.wait()
