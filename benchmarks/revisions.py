"""The library's sources at another revision."""

from __future__ import annotations

import contextlib
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from .workers import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator


class UnknownRevisionError(Exception):
    """There is no such revision, or it does not contain the library."""


@contextlib.contextmanager
def sources_of(revision: str, repository: Path = ROOT) -> Iterator[Path]:
    """Provide the `src` folder of a commit, branch or tag in a temporary folder. Raises
    `UnknownRevisionError`.
    """
    commit = resolved(revision, repository)
    with tempfile.TemporaryDirectory() as folder:
        archive = _git(repository, "archive", "--format=tar", f"{commit}:src")
        subprocess.run(["tar", "-x", "-C", folder], input=archive, check=True)
        if not Path(folder, "sluicegate", "__init__.py").exists():
            raise UnknownRevisionError(f"{revision}: has no src/sluicegate")
        yield Path(folder).resolve()


def resolved(revision: str, repository: Path = ROOT) -> str:
    """Return the commit of a revision. Raises `UnknownRevisionError`."""
    if not revision or revision.startswith("-"):
        raise UnknownRevisionError(f"{revision!r} is not a revision; give a commit, branch or tag")
    try:
        return _git(repository, "rev-parse", "--verify", f"{revision}^{{commit}}").decode().strip()
    except UnknownRevisionError as error:
        raise UnknownRevisionError(f"{revision!r} is not a revision here: {error}") from error


def _git(repository: Path, *arguments: str) -> bytes:
    try:
        done = subprocess.run(
            ["git", "-C", str(repository), *arguments], capture_output=True, check=False
        )
    except FileNotFoundError as missing:
        raise UnknownRevisionError("git is not installed") from missing
    if done.returncode:
        raise UnknownRevisionError(done.stderr.decode().strip())
    return done.stdout
