"""Jars from Maven: fetched once, with a small pom in the package, into the user's cache folder.

1. A folder of jars is named after its pom and the pom's content, so each version of Penstock has
   its own.
2. An existing folder is complete: it is built elsewhere and renamed. Concurrent fetches of the same
   folder wait for the first.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from ._core.errors import MissingJars

FETCH_SECONDS = 300
_COPY = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies"


def fetch(pom: Path) -> Path:
    """Return the folder with the jars of `pom`. The first call blocks while Maven fetches them.

    Raises `MissingJars` if Maven is not installed, or cannot fetch them.
    """
    digest = hashlib.sha256(pom.read_bytes()).hexdigest()[:12]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "penstock"
    folder = cache / f"{pom.stem}-{digest}"
    if folder.exists():
        return folder
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with (cache / f"{folder.name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not folder.exists():
                _fetch(pom, folder)
    except OSError as error:
        raise MissingJars(f"the jars cannot be kept in {cache}: {error}") from error
    return folder


def _fetch(source: Path, folder: Path) -> None:
    maven = shutil.which("mvn")
    if maven is None:
        raise MissingJars(f"no mvn: install Apache Maven, which fetches the jars of {source.stem}")
    with tempfile.TemporaryDirectory(dir=folder.parent) as aside:
        pom = Path(shutil.copy(source, Path(aside) / "pom.xml"))
        arriving = Path(aside) / "jars"
        command = [
            maven,
            "--batch-mode",
            "--quiet",
            "--file",
            str(pom),
            _COPY,
            f"-DoutputDirectory={arriving}",
            "-DincludeScope=runtime",
        ]
        try:
            done = subprocess.run(  # noqa: S603  # all of it is ours
                command,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                check=False,
                timeout=FETCH_SECONDS,
            )
        except subprocess.TimeoutExpired as error:
            raise MissingJars(
                f"Maven did not have the jars of {source.stem} within {FETCH_SECONDS} s"
            ) from error
        if done.returncode:
            raise MissingJars(
                "Maven could not get the jars of "
                f"{source.stem}:\n{(done.stdout + done.stderr)[-2000:]}"
            )
        arriving.rename(folder)
