"""Programs from Debian packages, fetched once into the user's cache folder and unpacked there
without installation.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from sluicegate.testing import EmbeddedUnavailable

if TYPE_CHECKING:
    from collections.abc import Sequence

FETCH_SECONDS = 120


def unpacked(
    name: str,
    packages: Sequence[str],
    libraries: Sequence[str],
    program: str,
    status: int = 0,
    *,
    whole: bool = False,
) -> Path:
    """The folder with these packages. Raises `EmbeddedUnavailable` with the reason.

    `libraries` are their libraries, by their names in different releases; some may already be
    installed. `whole` adds what apt would install for the packages. `program` is run with `--version` to check that it works; a program without that
    option exits with `status`.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sluicegate"
    folder = cache / f"{name}-debian"
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            with tempfile.TemporaryDirectory(dir=cache) as aside:
                made = _fetch(Path(aside), packages, libraries, whole=whole)
                run([*command(made, program), "--version"], made, status)
                made.rename(folder)
    return folder


def command(folder: Path, program: str) -> list[str]:
    """The first words of a command that runs a program of the folder."""
    return ["env", f"LD_LIBRARY_PATH={library_path(folder)}", str(folder / program)]


def library_path(folder: Path) -> str:
    """The folders of libraries of the folder."""
    return os.pathsep.join(map(str, folder.glob("**/*-linux-gnu")))


def run(args: Sequence[str], folder: Path, status: int = 0) -> str:
    """Run a command; return its output. Raises `EmbeddedUnavailable` if it exits with another
    status.
    """
    try:
        done = subprocess.run(
            args,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=FETCH_SECONDS,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise EmbeddedUnavailable(f"Debian's package cannot be had: {error}") from error
    if done.returncode != status:
        told = (done.stdout + done.stderr)[-500:]
        raise EmbeddedUnavailable(f"{' '.join(args[:3])} ended with {done.returncode}: {told}")
    return done.stdout


def _fetch(aside: Path, packages: Sequence[str], libraries: Sequence[str], *, whole: bool) -> Path:
    # the machine's own lists may name versions that the archive no longer has
    (aside / "lists" / "partial").mkdir(parents=True)
    places = (f"Dir::State::Lists={aside / 'lists'}", f"Dir::Cache={aside}")
    apt = ["apt-get", *(f"-o{each}" for each in (*places, "APT::Sandbox::User=root"))]
    run([*apt, "update"], aside)
    if whole:
        plan = run([*apt, "install", "--simulate", "--no-install-recommends", *packages], aside)
        packages = [line.split()[1] for line in plan.splitlines() if line.startswith("Inst ")]
    run([*apt, "download", *packages], aside)
    for library in libraries:
        with contextlib.suppress(EmbeddedUnavailable):
            run([*apt, "download", library], aside)
    made = aside / "unpacked"
    for package in aside.glob("*.deb"):
        run(["dpkg-deb", "-x", str(package), str(made)], aside)
    return made
