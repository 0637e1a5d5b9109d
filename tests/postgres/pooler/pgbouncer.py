"""A PgBouncer in front of the tests' PostgreSQL, from Debian's package.

The package is fetched once, into the user's cache folder, and unpacked there: nothing is installed.
PgBouncer refuses to run as root, so it runs as the embedded server's user.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import pwd
import shutil
import subprocess
import tempfile
import threading
from pathlib import Path
from typing import IO, TYPE_CHECKING
from urllib.parse import urlsplit

import asyncpg

from sluicegate.testing import EmbeddedUnavailable
from sluicegate.testing.servers import guard as processes
from sluicegate.testing.servers.program import GuardedFolder, free_port

if TYPE_CHECKING:
    from collections.abc import Generator

    from sluicegate.testing import EmbeddedPostgres

PACKAGE = "pgbouncer"
LIBRARIES = ("libc-ares2", "libcares2", "libevent-2.1-7", "libevent-2.1-7t64")
"""Its libraries, by their names in different releases; some may already be installed."""
PROGRAM = "usr/sbin/pgbouncer"
FETCH_SECONDS = 120
START_SECONDS = 60
SETTINGS = {
    "auth_type": "plain",
    "pool_mode": "transaction",
    "default_pool_size": "4",
    "max_client_conn": "200",
    "query_wait_timeout": "20",
    "server_login_retry": "0.2",
}


def unpacked() -> Path:
    """The folder with the unpacked packages; fetched once, by one process."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sluicegate"
    folder = cache / "pgbouncer-debian"
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "pgbouncer.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            with tempfile.TemporaryDirectory(dir=cache) as aside:
                _fetch(Path(aside)).rename(folder)
    return folder


def _fetch(aside: Path) -> Path:
    """Fetch and unpack the packages below `aside`; check that the program runs."""
    _run(["apt-get", "download", PACKAGE], aside)
    for library in LIBRARIES:
        with contextlib.suppress(EmbeddedUnavailable):
            _run(["apt-get", "download", library], aside)
    unpacked = aside / "unpacked"
    for package in aside.glob("*.deb"):
        _run(["dpkg-deb", "-x", str(package), str(unpacked)], aside)
    _run([str(unpacked / PROGRAM), "--version"], aside, **_libraries(unpacked))
    return unpacked


def _libraries(packages: Path) -> dict[str, str]:
    """The environment in which the program finds its libraries."""
    return {"LD_LIBRARY_PATH": os.pathsep.join(map(str, packages.glob("usr/lib/*-linux-gnu")))}


def _run(command: list[str], folder: Path, **environment: str) -> None:
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=FETCH_SECONDS,
            env={**os.environ, **environment},
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise EmbeddedUnavailable(f"PgBouncer's package cannot be had: {error}") from error
    if done.returncode:
        told = (done.stdout + done.stderr)[-500:]
        raise EmbeddedUnavailable(f"{' '.join(command[:2])} ended with {done.returncode}: {told}")


class PgBouncer:
    """One PgBouncer on a loopback port, for the database and the superuser of one server."""

    def __init__(self, server: EmbeddedPostgres) -> None:
        self._packages = unpacked()
        self._server = urlsplit(server.dsn)
        self.port = free_port()
        self._folder = GuardedFolder("sluicegate-pgbouncer-")
        self._user = pwd.getpwnam("pgserver") if os.geteuid() == 0 else None
        self._programs = self._folder.path / "packages"
        shutil.copytree(self._packages, self._programs, symlinks=True)
        self._settings = dict(SETTINGS)
        self.log: list[str] = []
        (self._folder.path / "users.txt").write_text(f'"postgres" "{self._server.password}"\n')
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def dsn(self) -> str:
        """The DSN of the superuser, through the pooler."""
        return self.dsn_of("postgres")

    def dsn_of(self, database: str) -> str:
        """The DSN of a database; `pgbouncer` is the pooler's own console."""
        return f"postgresql://postgres:{self._server.password}@127.0.0.1:{self.port}/{database}"

    def start(self, **settings: str) -> None:
        """Start it; return once it accepts connections."""
        self._configure(settings)
        user = self._user
        self._process = subprocess.Popen(
            [str(self._programs / PROGRAM), "pgbouncer.ini"],
            cwd=self._folder.path,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            user=None if user is None else user.pw_uid,
            group=None if user is None else user.pw_gid,
            extra_groups=None if user is None else [],
            env={**os.environ, **_libraries(self._programs)},
        )
        is_up = threading.Event()
        threading.Thread(target=self._read, args=(self._process.stdout, is_up), daemon=True).start()
        is_up.wait(START_SECONDS)
        if not any("process up" in line for line in self.log):
            raise EmbeddedUnavailable(f"PgBouncer does not start: {''.join(self.log)[-1000:]}")

    def _read(self, output: IO[bytes], is_up: threading.Event) -> None:
        """Collect its log until it ends."""
        with output:
            for line in output:
                self.log.append(line.decode(errors="replace"))
                if b"process up" in line:
                    is_up.set()
        is_up.set()

    def _configure(self, settings: dict[str, str]) -> None:
        server, folder = self._server, self._folder.path
        found = {**self._settings, **settings}
        lines = [
            "[databases]",
            f"* = host=127.0.0.1 port={server.port}",
            "[pgbouncer]",
            "listen_addr = 127.0.0.1",
            f"listen_port = {self.port}",
            "unix_socket_dir =",
            "auth_file = users.txt",
            "admin_users = postgres",
            *(f"{name} = {value}" for name, value in found.items()),
        ]
        (folder / "pgbouncer.ini").write_text("\n".join([*lines, ""]))
        if self._user is not None:
            for path in (folder, *folder.iterdir()):
                os.chown(path, self._user.pw_uid, self._user.pw_gid)

    async def serve(self, server: EmbeddedPostgres) -> None:
        """Lead new connections to another server, with the same password."""
        self._server = urlsplit(server.dsn)
        self._configure({})
        await self.command("RELOAD")

    async def command(self, text: str) -> None:
        """Run a console command such as `PAUSE`."""
        con = await asyncpg.connect(self.dsn_of("pgbouncer"), statement_cache_size=0)
        try:
            await con.execute(text)
        finally:
            await con.close()

    async def reload(self, **settings: str) -> None:
        """Change settings while it runs."""
        self._configure(settings)
        await self.command("RELOAD")

    def stop(self) -> None:
        """Kill it, as a crash would."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    async def restart(self, **settings: str) -> None:
        """Kill it and restart it on the same port with its usual settings, except these."""
        await asyncio.to_thread(self.stop)
        await asyncio.to_thread(self.start, **settings)

    def close(self) -> None:
        """Kill it and remove its folder."""
        if self._folder.is_ours:
            self.stop()
            processes.kill_all_in(self._folder.path, 10)
            self._folder.remove()


@contextlib.contextmanager
def running(server: EmbeddedPostgres, **settings: str) -> Generator[PgBouncer]:
    """A PgBouncer for this server; killed and removed when the context ends."""
    bouncer = PgBouncer(server)
    bouncer._settings |= settings
    try:
        bouncer.start()
        yield bouncer
    finally:
        bouncer.close()
