"""A Redis server on loopback, from the path or from Debian's packages.

The packages are fetched once, into the user's cache folder, and unpacked there: nothing is installed.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.testing.servers.ports import free_port
from penstock.testing.servers.program import START_SECONDS, ServerProgram
from penstock.testing.servers.require import EmbeddedUnavailable

if TYPE_CHECKING:
    from collections.abc import Generator

PACKAGES = ("redis-server", "redis-tools")
LIBRARIES = ("libjemalloc2", "liblzf1", "libatomic1", "libhiredis0.14", "libhiredis1.1.0")
"""Its libraries, by their names in different releases; some may be installed."""
PROGRAM = "usr/bin/redis-server"
FETCH_SECONDS = 120
LOOK_EVERY = 0.01


def program() -> list[str]:
    """The command that runs `redis-server`. Raises `EmbeddedUnavailable` with the reason."""
    found = shutil.which("redis-server")
    if found is not None:
        return [found]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "penstock"
    folder = cache / "redis-debian"
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "redis.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            with tempfile.TemporaryDirectory(dir=cache) as aside:
                _fetch(Path(aside)).rename(folder)
    return _command(folder)


def _command(unpacked: Path) -> list[str]:
    libraries = os.pathsep.join(map(str, unpacked.glob("usr/lib/*-linux-gnu")))
    return ["env", f"LD_LIBRARY_PATH={libraries}", str(unpacked / PROGRAM)]


def _fetch(aside: Path) -> Path:
    """Fetch and unpack the packages below `aside`; check that the program can be run."""
    _run(["apt-get", "download", *PACKAGES], aside)
    for library in LIBRARIES:
        with contextlib.suppress(EmbeddedUnavailable):
            _run(["apt-get", "download", library], aside)
    unpacked = aside / "unpacked"
    for package in aside.glob("*.deb"):
        _run(["dpkg-deb", "-x", str(package), str(unpacked)], aside)
    _run([*_command(unpacked), "--version"], aside)
    return unpacked


def _run(command: list[str], folder: Path) -> None:
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=FETCH_SECONDS,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        reason = f"redis-server is not on the path, and Debian's package cannot be had: {error}"
        raise EmbeddedUnavailable(reason) from error
    if done.returncode:
        told = (done.stdout + done.stderr)[-500:]
        raise EmbeddedUnavailable(f"{' '.join(command[:3])} ended with {done.returncode}: {told}")


class RedisServer:
    """One server, whose data survive `kill` and `start`: each change is in its file before its
    answer.
    """

    def __init__(self) -> None:
        command = program()
        self.port = free_port()
        self._server = ServerProgram("Redis", self._is_ready)
        options = {
            "bind": "127.0.0.1",
            "port": str(self.port),
            "save": "",
            "appendonly": "yes",
            "dir": str(self._server.home),
        }
        told = [part for name, value in options.items() for part in (f"--{name}", value)]
        self._server.configure([*command, *told])

    @property
    def url(self) -> str:
        """Its address; stays the same over restarts."""
        return f"redis://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start it, and return when it answers."""
        self._server.start()

    def kill(self) -> None:
        """Kill it with SIGKILL."""
        self._server.kill()

    def close(self) -> None:
        """Kill it, and remove its data."""
        self._server.close()

    def _is_ready(self, process: subprocess.Popen[bytes]) -> bool:
        until = time.monotonic() + START_SECONDS
        while process.poll() is None and time.monotonic() < until:
            if self._answers():
                return True
            time.sleep(LOOK_EVERY)
        return False

    def _answers(self) -> bool:
        """Whether it has loaded its data."""
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=1) as client:
                client.sendall(b"PING\r\n")
                return client.recv(64).startswith(b"+PONG")
        except OSError:
            return False


@contextlib.contextmanager
def redis_server() -> Generator[RedisServer]:
    """A server; killed and removed when the context ends. Raises `EmbeddedUnavailable`."""
    server = RedisServer()
    try:
        server.start()
        yield server
    finally:
        server.close()
