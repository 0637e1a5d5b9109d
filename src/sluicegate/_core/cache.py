"""Folders in the user's cache, each made once on a machine.

1. An existing folder is complete: it is made elsewhere and renamed. Concurrent calls for the same
   folder wait for the first.
2. A folder never changes: its name contains a digest of what determines its contents.
3. Jars are fetched from Maven, with a small pom in the package. Their folder is named after the pom
   and its content, so each version of Sluicegate has its own.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import tempfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from .errors import MissingJars

if TYPE_CHECKING:
    from collections.abc import Callable

FETCH_SECONDS = 300
"""Seconds for Maven to fetch the jars."""
_COPY = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies"


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


def fetch(pom: Path) -> Path:
    """Return the folder with the jars of `pom`. The first call blocks while Maven fetches them.

    Raises `MissingJars` if Maven is not installed, or cannot fetch them.
    """
    digest = hashlib.sha256(pom.read_bytes()).hexdigest()[:12]
    try:
        return made_once(f"{pom.stem}-{digest}", partial(_fetched, pom))
    except OSError as error:
        raise MissingJars(f"the jars cannot be kept in {location()}: {error}") from error


def _fetched(source: Path, aside: Path) -> Path:
    maven = shutil.which("mvn")
    if maven is None:
        raise MissingJars(f"no mvn: install Apache Maven, which fetches the jars of {source.stem}")
    pom = Path(shutil.copy(source, aside / "pom.xml"))
    jars = aside / "jars"
    command = [
        maven,
        "--batch-mode",
        "--quiet",
        "--file",
        str(pom),
        _COPY,
        f"-DoutputDirectory={jars}",
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
            f"Maven could not get the jars of {source.stem}:\n{(done.stdout + done.stderr)[-2000:]}"
        )
    return jars
