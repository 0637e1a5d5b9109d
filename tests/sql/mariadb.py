"""A MariaDB server on loopback, from Debian's packages."""

from __future__ import annotations

import contextlib
import os
import select
import socket
from typing import TYPE_CHECKING

from tests.debian_packages import command, run, unpacked

from sluicegate.testing.servers.program import START_SECONDS, ServerProgram, free_port

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Generator

PACKAGES = ("mariadb-server-core", "mariadb-client-core", "mariadb-common")
LIBRARIES = ("liburing2", "libaio1", "libaio1t64", "libsnappy1v5")
PROGRAM = "usr/sbin/mariadbd"
INSTALL = "usr/bin/mariadb-install-db"


class MariaDbServer:
    """One server, whose data survive `kill` and `start`. Its user is `root`, without a password."""

    def __init__(self, *options: str) -> None:
        folder = unpacked("mariadb", PACKAGES, LIBRARIES, PROGRAM)
        self.port = free_port()
        self._server = ServerProgram("MariaDB", self._is_ready)
        home = self._server.home
        self._told = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._told.bind(str(home / "notify"))
        data = home / "data"
        data.mkdir()
        ours = [
            "--no-defaults",
            f"--basedir={folder / 'usr'}",
            f"--datadir={data}",
            f"--tmpdir={home}",  # a starting server removes temporary tables of others there
            "--user=root",
            "--innodb-log-file-size=8M",  # 96 MB by default, allocated on disk from the start
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
                "env",
                f"NOTIFY_SOCKET={home / 'notify'}",
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
        """Its URL for SQLAlchemy; stays the same across restarts."""
        return f"mysql+{driver}://root@127.0.0.1:{self.port}/{database}"

    def start(self) -> None:
        """Start it, and return when it responds."""
        self._server.start()

    def pause(self) -> None:
        """Freeze it: connections hang instead of breaking."""
        self._server.pause()

    def resume(self) -> None:
        """Resume it."""
        self._server.resume()

    def kill(self) -> None:
        """Kill it with SIGKILL."""
        self._server.kill()

    def close(self) -> None:
        """Kill it, and remove its data."""
        self._server.close()
        self._told.close()

    def _is_ready(self, process: subprocess.Popen[bytes]) -> bool:
        """Wait until it reports readiness, as to systemd, or has ended."""
        told, ended = self._told.fileno(), os.pidfd_open(process.pid)
        try:
            while True:
                found, _, _ = select.select([told, ended], [], [], START_SECONDS)
                if told not in found:
                    return False
                if b"READY=1" in self._told.recv(4096):
                    return True
        finally:
            os.close(ended)


@contextlib.contextmanager
def mariadb_server(*options: str) -> Generator[MariaDbServer]:
    """A server; killed and removed when the context ends. Raises `EmbeddedUnavailable`."""
    server = MariaDbServer(*options)
    try:
        server.start()
        yield server
    finally:
        server.close()
