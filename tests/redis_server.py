"""A Redis server on loopback, from the path or from Debian's packages."""

from __future__ import annotations

import contextlib
import shutil
import socket
import time
from typing import TYPE_CHECKING

from tests.debian_packages import command, unpacked

from sluicegate.testing.servers.program import START_SECONDS, ServerProgram, free_port

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Generator

PACKAGES = ("redis-server", "redis-tools")
LIBRARIES = ("libjemalloc2", "liblzf1", "libatomic1", "libhiredis0.14", "libhiredis1.1.0")
"""Its libraries, by their names in different releases; some may already be installed."""
PROGRAM = "usr/bin/redis-server"
LOOK_EVERY = 0.01


def program() -> list[str]:
    """The command that runs `redis-server`. Raises `EmbeddedUnavailable` with the reason."""
    found = shutil.which("redis-server")
    if found is not None:
        return [found]
    return command(unpacked("redis", PACKAGES, LIBRARIES, PROGRAM), PROGRAM)


class RedisServer:
    """A server whose data survive `kill` and `start`: each change is in its file before the reply.
    `options` are those of `redis.conf`.
    """

    def __init__(self, **options: str) -> None:
        args = program()
        self.port = free_port()
        self._server = ServerProgram("Redis", self._is_ready)
        all_options = {
            "bind": "127.0.0.1",
            "port": str(self.port),
            "save": "",
            "appendonly": "yes",
            "dir": str(self._server.home),
            **options,
        }
        told = [part for name, value in all_options.items() for part in (f"--{name}", value)]
        self._server.configure([*args, *told])

    @property
    def url(self) -> str:
        """Its URL; stays the same across restarts."""
        return f"redis://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start it, and return once it responds."""
        self._server.start()

    def kill(self) -> None:
        """Kill it with SIGKILL."""
        self._server.kill()

    def pause(self) -> None:
        """Freeze it."""
        self._server.pause()

    def resume(self) -> None:
        """Resume it."""
        self._server.resume()

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


class RedisSentinel(RedisServer):
    """A Sentinel that watches a server under the name `main` and never promotes a replica."""

    def __init__(self, watched: RedisServer) -> None:
        super().__init__()
        config = self._server.folder.path / "sentinel.conf"
        lines = (
            "bind 127.0.0.1",
            f"port {self.port}",
            f"dir {self._server.home}",
            f"sentinel monitor main 127.0.0.1 {watched.port} 1",
        )
        config.write_text("\n".join(lines))
        self._server.configure([*program(), str(config), "--sentinel"])


@contextlib.contextmanager
def redis_sentinel(watched: RedisServer) -> Generator[RedisSentinel]:
    """A Sentinel; killed and removed when the context ends."""
    server = RedisSentinel(watched)
    try:
        server.start()
        yield server
    finally:
        server.close()


@contextlib.contextmanager
def redis_server(**options: str) -> Generator[RedisServer]:
    """A server; killed and removed when the context ends. Raises `EmbeddedUnavailable`."""
    server = RedisServer(**options)
    try:
        server.start()
        yield server
    finally:
        server.close()
