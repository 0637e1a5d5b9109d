"""Jars from Maven: fetched once, with a small pom in the package, into the user's cache folder.

A folder of jars is named after its pom and the pom's content, so each version of Sluicegate has its
own.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
from functools import partial
from pathlib import Path

from .cache import location, made_once
from .errors import MissingJars

FETCH_SECONDS = 300
_COPY = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies"


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
