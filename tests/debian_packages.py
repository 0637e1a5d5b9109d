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
    from collections.abc import Callable, Sequence

FETCH_SECONDS = 170


def unpacked(
    name: str,
    packages: Sequence[str],
    libraries: Sequence[str],
    program: str,
    status: int = 0,
    *,
    whole: bool = False,
    suite: str | None = None,
) -> Path:
    """The folder with these packages. Raises `EmbeddedUnavailable` with the reason.

    `libraries` are their libraries, by their names in different releases; some may already be
    installed. `whole` adds what apt would install for the packages; with a `suite` that is not this
    machine's release, that is everything down to the C library. `program` is run with `--version` to check that it works; a program without that
    option exits with `status`.
    """

    def fetch(aside: Path) -> Path:
        made = _fetch(aside, packages, libraries, whole=whole, suite=suite)
        run([*command(made, program), "--version"], made, status)
        return made

    return cached(f"{name}-debian", fetch)


def cached(name: str, fetch: Callable[[Path], Path]) -> Path:
    """A folder in the user's cache. The first process calls `fetch`, with a folder to work in; it
    returns the finished folder in there.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sluicegate"
    folder = cache / name
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            with tempfile.TemporaryDirectory(dir=cache) as aside:
                fetch(Path(aside)).rename(folder)
    return folder


def command(folder: Path, program: str) -> list[str]:
    """The first words of a command that runs a program of the folder, with its C library if it has
    one.
    """
    loader = next(folder.glob("usr/lib/*-linux-gnu/ld-linux-*"), None)
    if loader is not None:
        return [str(loader), "--library-path", library_path(folder), str(folder / program)]
    return ["env", f"LD_LIBRARY_PATH={library_path(folder)}", str(folder / program)]


def library_path(folder: Path) -> str:
    """The folders of libraries of the folder, PulseAudio's own included."""
    own = folder.glob("**/*-linux-gnu/pulseaudio")  # libpulse finds them by an absolute path
    return os.pathsep.join(map(str, (*folder.glob("**/*-linux-gnu"), *own)))


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
        raise EmbeddedUnavailable(f"its package cannot be had: {error}") from error
    if done.returncode != status:
        told = (done.stdout + done.stderr)[-500:]
        raise EmbeddedUnavailable(f"{' '.join(args[:3])} ended with {done.returncode}: {told}")
    return done.stdout


def _fetch(
    aside: Path,
    packages: Sequence[str],
    libraries: Sequence[str],
    *,
    whole: bool,
    suite: str | None,
) -> Path:
    # the machine's own lists may name versions that the archive no longer has
    (aside / "lists" / "partial").mkdir(parents=True)
    places: tuple[str, ...] = (f"Dir::State::Lists={aside / 'lists'}", f"Dir::Cache={aside}")
    if suite is not None:
        uris = run(["apt-get", "indextargets", "--format", "$(REPO_URI)"], aside).splitlines()
        archive = next((uri for uri in uris if uri.rstrip("/").endswith("/debian")), None)
        if archive is None:
            raise EmbeddedUnavailable("apt knows no archive of Debian")
        source = aside / "sources.list"
        source.write_text(f"deb {archive} {suite} main\n")
        places += (f"Dir::Etc::sourcelist={source}", "Dir::Etc::sourceparts=/dev/null")
        places += ("Dir::State::status=/dev/null",)
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
