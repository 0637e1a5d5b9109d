"""A real OpenSearch for tests, one node, from its jars; works as root too.

As with the embedded PostgreSQL, a server is recognised by its process's current folder, which is its home; so a process id that now
belongs to somebody else is never taken for it.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import select
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path
from typing import IO, TYPE_CHECKING

from . import _processes
from ._jars import JAVA, jars, java
from ._ports import free_port
from ._require import EmbeddedUnavailable

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping

START_SECONDS = 60
STOP_SECONDS = 30
_FLAGS = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Dlog4j2.disable.jmx=true")


class EmbeddedOpenSearch:
    """One OpenSearch node on loopback, with data of its own and no security; made by `embedded_opensearch`.

    `kill` ends it at once, as a crash would; `start` or `restart` bring it up again on the same data and port. All methods block, for
    seconds: call them through `asyncio.to_thread` beside other work. Not for use by several threads at once.
    """

    def __init__(self, settings: Mapping[str, str], heap: str) -> None:
        self._java = java()
        self._jars = jars("opensearch.xml")
        self._folder = Path(tempfile.mkdtemp(prefix="penstock-opensearch-")).resolve()
        self._home = self._folder / "home"
        self._home.mkdir()
        self._heap = heap
        self._owner = os.getpid()
        self._process: subprocess.Popen[bytes] | None = None
        self.port = free_port()
        ours = {
            "path.home": str(self._home),
            "cluster.name": "penstock",
            "node.name": "penstock",
            "discovery.type": "single-node",
            "network.host": "127.0.0.1",
            "http.port": str(self.port),
            "http.type": "netty4",
            "transport.port": str(free_port()),
            "transport.type": "netty4",
            "cluster.routing.allocation.disk.threshold_enabled": "false",
        }
        self._settings = {**ours, **settings}
        atexit.register(self._close_at_exit)

    @property
    def url(self) -> str:
        """Where it takes requests. Stays the same over restarts."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int | None:
        """The server's process; `None` while it is down."""
        process = self._process
        return process.pid if process is not None and process.poll() is None else None

    def start(self) -> None:
        """Start the server and return when it takes requests; does nothing if it is up.

        Raises `EmbeddedUnavailable` with the end of the server's log if it does not come up within a minute.
        """
        if self.pid is not None:
            return
        self._clear_away()
        log = self._folder / "server.log"
        settings = [f"{name}={value}" for name, value in self._settings.items()]
        with log.open("wb") as output:
            process = self._process = subprocess.Popen(
                [
                    self._java,
                    f"-Xms{self._heap}",
                    f"-Xmx{self._heap}",
                    *_FLAGS,
                    "-cp",
                    f"{self._jars}/*",
                    str(JAVA / "OpenSearch.java"),
                    *settings,
                ],
                stdin=subprocess.PIPE,  # it ends with us, however we end
                stdout=subprocess.PIPE,
                stderr=output,
                cwd=self._home,
                start_new_session=True,
            )
        if process.stdout is None or not _says_ready(process.stdout):
            self._clear_away()
            raise EmbeddedUnavailable(f"OpenSearch did not start within {START_SECONDS} s:\n{log.read_text(errors='replace')[-2000:]}")

    def stop(self) -> None:
        """Stop the server in order; does nothing if it is down. One that does not end within 30 s is killed."""
        if self.pid is not None and self._process is not None:
            self.resume()
            self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(STOP_SECONDS)
        self._clear_away()

    def kill(self) -> None:
        """Kill the server with SIGKILL, as a crash would, and return when it is gone; does nothing if it is down."""
        self._clear_away()

    def restart(self) -> None:
        """Start again on the same data and port, after `kill` or `stop`, or in order from running."""
        self.stop()
        self.start()

    def pause(self) -> None:
        """Freeze the server (SIGSTOP): requests hang instead of failing. `kill`, `stop` and `close` still work."""
        _processes.send(_processes.find_in(self._home), signal.SIGSTOP)

    def resume(self) -> None:
        """Let a paused server go on; does nothing otherwise."""
        _processes.send(_processes.find_in(self._home), signal.SIGCONT)

    def close(self) -> None:
        """Kill the server and remove its data. Closing twice is harmless."""
        atexit.unregister(self._close_at_exit)
        if self._home.exists():
            self.kill()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _close_at_exit(self) -> None:
        if os.getpid() == self._owner:  # a forked child is not the one to end it
            self.close()

    def _clear_away(self) -> None:
        """End what works in the home, and let go of its pipes."""
        if not _processes.kill_all_in(self._home, STOP_SECONDS):
            raise EmbeddedUnavailable(f"the server is still there {STOP_SECONDS} s after SIGKILL")
        process, self._process = self._process, None
        if process is not None:
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()

    def __repr__(self) -> str:
        return f"EmbeddedOpenSearch(port={self.port}, pid={self.pid})"


def _says_ready(output: IO[bytes]) -> bool:
    """Whether it says so in time; a server that ends says nothing."""
    return bool(select.select([output], [], [], START_SECONDS)[0]) and output.readline().startswith(b"ready")


@contextlib.contextmanager
def embedded_opensearch(settings: Mapping[str, str] | None = None, *, heap: str = "128m") -> Generator[EmbeddedOpenSearch, None, None]:
    """Start an OpenSearch of our own on loopback; kill it and remove its data when the context ends.

    Blocks while starting, about four seconds; the first time also while Maven fetches its jars (44 MB) into the user's cache folder.

    Args:
        settings: server settings by name, none by default, such as `{"http.max_content_length": "1mb"}`.
        heap: the server's memory, as Java's `-Xmx` takes it.

    Raises:
        EmbeddedUnavailable: there is no Java, no Maven or no jars, or the server cannot be started; the message says why.
    """
    server = EmbeddedOpenSearch(settings or {}, heap)
    try:
        server.start()
        yield server
    finally:
        server.close()
