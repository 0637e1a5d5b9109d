"""Virtual environments for libraries that Sluicegate does not need, one per interpreter."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from .harness import CaseUnavailableError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

PATIENCE = 180.0
"""Maximum seconds of an installation."""


@dataclass(frozen=True, slots=True)
class Environment:
    """An interpreter with packages, and the reasons why some could not be installed."""

    executable: str
    refused: dict[str, str]

    def has(self, package: str) -> bool:
        """Return whether an optional package is installed."""
        return package not in self.refused

    def version(self, package: str) -> str:
        """Return the name and the version of an installed package."""
        name = package.partition("[")[0]
        script = f"from importlib.metadata import version; print(version({name!r}))"
        found = subprocess.run(
            [self.executable, "-c", script], capture_output=True, text=True, check=True
        )
        return f"{name} {found.stdout.strip()}"


@contextlib.contextmanager
def environment(
    executable: str, packages: Sequence[str], optional: Sequence[str] = ()
) -> Iterator[Environment]:
    """Create an environment with `packages` and the installable ones of `optional`; remove it at
    the exit. Raises `CaseUnavailableError` if `packages` cannot be installed.
    """
    with tempfile.TemporaryDirectory() as folder:
        python = str(Path(folder, "bin", "python"))
        uv = _uv()
        if complaint := _run([uv, "venv", "--quiet", "--python", executable, folder]):
            raise CaseUnavailableError(complaint)
        install = [uv, "pip", "install", "--quiet", "--python", python]
        if complaint := _run([*install, *packages]):
            raise CaseUnavailableError(complaint)
        found = {package: _run([*install, package]) for package in optional}
        yield Environment(python, {name: why for name, why in found.items() if why})


def _uv() -> str:
    found = shutil.which("uv", path=str(Path(sys.executable).parent)) or shutil.which("uv")
    if found is None:
        raise CaseUnavailableError("uv is not installed")
    return found


def _run(command: Sequence[str]) -> str:
    """Run a command; return its error output, empty on success."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=PATIENCE, check=False
        )
    except subprocess.TimeoutExpired:
        return f"{command[0]} took more than {PATIENCE:g} s"
    return "" if done.returncode == 0 else " ".join(done.stderr.split()) or "unknown"
