"""Java programs from Maven: their jars fetched once, by a small pom that comes with the package, and kept in the user's cache folder."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from ._require import EmbeddedUnavailable

FETCH_SECONDS = 300
JAVA = Path(__file__).parent / "_java"
_COPY = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies"


def java() -> str:
    """The program `java`: of `JAVA_HOME`, or on the path."""
    home = os.environ.get("JAVA_HOME")
    found = shutil.which("java", path=str(Path(home) / "bin")) if home else None
    found = found or shutil.which("java")
    if found is None:
        raise EmbeddedUnavailable("no java: install a Java runtime, 17 or newer, or set JAVA_HOME")
    return found


def jars(pom: str) -> Path:
    """The folder that holds what `pom`, a file beside this module, asks for. Blocks while Maven fetches it, the first time.

    Raises `EmbeddedUnavailable` where there is no Maven, or it cannot get them.
    """
    source = JAVA / pom
    digest = hashlib.sha256(source.read_bytes()).hexdigest()[:12]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "penstock"
    folder = cache / f"{source.stem}-{digest}"
    if folder.exists():
        return folder
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with (cache / f"{folder.name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # several test runs may want them at once
            if not folder.exists():
                _fetch(source, folder)
    except OSError as error:
        raise EmbeddedUnavailable(f"the jars cannot be kept in {cache}: {error}") from error
    return folder


def _fetch(source: Path, folder: Path) -> None:
    maven = shutil.which("mvn")
    if maven is None:
        raise EmbeddedUnavailable("no mvn: install Apache Maven, which fetches the server's jars")
    with tempfile.TemporaryDirectory(dir=folder.parent) as aside:
        pom = Path(shutil.copy(source, Path(aside) / "pom.xml"))
        arriving = Path(aside) / "jars"
        command = [maven, "--batch-mode", "--quiet", "--file", str(pom), _COPY, f"-DoutputDirectory={arriving}", "-DincludeScope=runtime"]
        try:
            done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=FETCH_SECONDS)
        except subprocess.TimeoutExpired as error:
            raise EmbeddedUnavailable(f"Maven did not have the jars of {source.stem} within {FETCH_SECONDS} s") from error
        if done.returncode:
            raise EmbeddedUnavailable(f"Maven could not get the jars of {source.stem}:\n{(done.stdout + done.stderr)[-2000:]}")
        arriving.rename(folder)
