"""A MariaDB server on loopback, from Debian's packages."""

from __future__ import annotations

import contextlib
import socket
import time
from typing import TYPE_CHECKING

from tests.debian_packages import command, run, unpacked

from penstock.testing.servers.ports import free_port
from penstock.testing.servers.program import START_SECONDS, ServerProgram

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Generator

PACKAGES = ("mariadb-server-core", "mariadb-client-core", "mariadb-common")
LIBRARIES = ("liburing2", "libaio1", "libaio1t64", "libsnappy1v5")
PROGRAM = "usr/sbin/mariadbd"
INSTALL = "usr/bin/mariadb-install-db"
LOOK_EVERY = 0.01


class MariaDbServer:
    """One server, whose data survive `kill` and `start`. Its user is `root`, without a password."""

    def __init__(self, *options: str) -> None:
        folder = unpacked("mariadb", PACKAGES, LIBRARIES, PROGRAM)
        self.port = free_port()
        self._server = ServerProgram("MariaDB", self._is_ready)
        home = self._server.home
        data = home / "data"
        data.mkdir()
        ours = [
            "--no-defaults",
            f"--basedir={folder / 'usr'}",
            f"--datadir={data}",
            f"--tmpdir={home}",  # a server that starts removes the temporary tables of others there
            "--user=root",
        ]
        run(
            [
                *command(folder, INSTALL),
                *ours,
                "--auth-root-authentication-method=normal",
                "--force",
            ],
            home,
        )
        self._server.configure(
            [
                *command(folder, PROGRAM),
                *ours,
                f"--socket={home / 'socket'}",
                f"--port={self.port}",
                "--bind-address=127.0.0.1",
                "--skip-name-resolve",
                "--innodb-buffer-pool-size=32M",
                *options,
            ]
        )

    def url(self, driver: str = "pymysql", database: str = "test") -> str:
        """Its address for SQLAlchemy; stays the same over restarts."""
        return f"mysql+{driver}://root@127.0.0.1:{self.port}/{database}"

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
            if self._greets():
                return True
            time.sleep(LOOK_EVERY)
        return False

    def _greets(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=1) as client:
                return b"MariaDB" in client.recv(100)
        except OSError:
            return False


@contextlib.contextmanager
def mariadb_server(*options: str) -> Generator[MariaDbServer]:
    """A server; killed and removed when the context ends. Raises `EmbeddedUnavailable`."""
    server = MariaDbServer(*options)
    try:
        server.start()
        yield server
    finally:
        server.close()
