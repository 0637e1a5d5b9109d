"""A MariaDB or MySQL server on loopback, from Debian's packages.

Debian's releases have no MySQL, so that one is of its unstable suite, with the libraries there.
"""

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
    from pathlib import Path

PACKAGES = ("mariadb-server-core", "mariadb-client-core", "mariadb-common")
LIBRARIES = ("liburing2", "libaio1", "libaio1t64", "libsnappy1v5")
PROGRAM = "usr/sbin/mariadbd"
INSTALL = "usr/bin/mariadb-install-db"
MYSQL = "usr/sbin/mysqld"
IS_MYSQL = bool(os.environ.get("SLUICEGATE_MYSQL"))
"""Whether the tests run on MySQL, which has no `RETURNING` and no type `UUID`."""


class MariaDbServer:
    """One server, whose data survive `kill` and `start`. Its user is `root`, without a password."""

    name = "MariaDB"

    def __init__(self, *options: str) -> None:
        folder = self._unpack()
        self.port = free_port()
        self._server = ServerProgram(self.name, self._is_ready)
        home = self._server.home
        self._told = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._told.bind(str(home / "notify"))
        ours = [
            "--no-defaults",
            f"--basedir={folder / 'usr'}",
            f"--datadir={home / 'data'}",
            f"--tmpdir={home}",  # a starting server removes temporary tables of others there
            "--user=root",
        ]
        program = self._install(folder, ours)
        self._server.configure(
            [
                "env",
                f"NOTIFY_SOCKET={home / 'notify'}",
                *program,
                f"--socket={home / 'socket'}",
                f"--port={self.port}",
                "--bind-address=127.0.0.1",
                "--skip-name-resolve",
                "--innodb-buffer-pool-size=32M",
                *options,
            ]
        )

    def _unpack(self) -> Path:
        return unpacked("mariadb", PACKAGES, LIBRARIES, PROGRAM)

    def _install(self, folder: Path, ours: list[str]) -> list[str]:
        """Create the data; return the server's command."""
        ours.append("--innodb-log-file-size=8M")  # 96 MB by default, allocated on disk at once
        home = self._server.home
        (home / "data").mkdir()
        install = ("--auth-root-authentication-method=normal", "--force")
        run([*command(folder, INSTALL), *ours, *install], home)
        return [*command(folder, PROGRAM), *ours]

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


class MySqlServer(MariaDbServer):
    """MySQL's own server."""

    name = "MySQL"

    def _unpack(self) -> Path:
        return unpacked("mysql", ["mysql-server-core"], [], MYSQL, whole=True, suite="sid")

    def _install(self, folder: Path, ours: list[str]) -> list[str]:
        home = self._server.home
        program = [*command(folder, MYSQL), *ours, "--mysqlx=OFF", "--secure-file-priv="]
        program.append("--tls-version=")  # proxies of the tests read statements
        users = home / "users.sql"
        users.write_text(
            "CREATE USER root@'127.0.0.1';\n"
            "GRANT ALL ON *.* TO root@'127.0.0.1' WITH GRANT OPTION;\n"
        )
        run([*program, "--initialize-insecure", f"--init-file={users}"], home)
        return [*program, f"--pid-file={home / 'pid'}"]


@contextlib.contextmanager
def mariadb_server(
    *options: str, kind: type[MariaDbServer] = MariaDbServer
) -> Generator[MariaDbServer]:
    """A server; killed and removed when the context ends. Raises `EmbeddedUnavailable`."""
    server = kind(*options)
    try:
        server.start()
        yield server
    finally:
        server.close()
