"""A Java server in a folder of its own: started, paused, killed, restarted, and removed.

1. The program is one source file beside the poms. It prints "ready" when it accepts requests, and
   shuts down cleanly on SIGTERM.
2. A server is recognised by its process's current folder, which is its home. So a process id that
   the system has reused is never taken for it.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import subprocess
from pathlib import Path
from typing import IO, TYPE_CHECKING

from ... import _maven
from ..._core.errors import MissingJars
from . import processes
from .guarded import GuardedFolder
from .require import EmbeddedUnavailable

if TYPE_CHECKING:
    from collections.abc import Sequence

PROGRAMS = Path(__file__).parent / "programs"
START_SECONDS = 60
STOP_SECONDS = 30
_FLAGS = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")


class JavaServer:
    """One server's process, its folder and its output.

    All methods block, for seconds. Not thread-safe.

    Args:
        name: the server's name in messages; `NAME.java` is its program, `name.xml` its pom.
        heap: its memory, in the form of Java's `-Xmx`.
        flags: further arguments of `java`.
        classpath: the folder of its jars, if Maven need not fetch them.
    """

    def __init__(
        self, name: str, heap: str, *, flags: Sequence[str] = (), classpath: Path | None = None
    ) -> None:
        self._name = name
        program = [_java(), f"-Xms{heap}", f"-Xmx{heap}", *_FLAGS, *flags]
        classpath = classpath or _jars(f"{name.lower()}.xml")
        self._command = [*program, "-cp", f"{classpath}/*", str(PROGRAMS / f"{name}.java")]
        self.folder = GuardedFolder(f"penstock-{name.lower()}-")
        self.home = self.folder.path / "home"
        self.home.mkdir()
        self._arguments: Sequence[str] = ()
        self._process: subprocess.Popen[bytes] | None = None

    def configure(self, arguments: Sequence[str]) -> None:
        """Set the program's arguments for the next start."""
        self._arguments = arguments

    @property
    def pid(self) -> int | None:
        """The server's process; `None` while it is down."""
        process = self._process
        return process.pid if process is not None and process.poll() is None else None

    def start(self) -> None:
        """Start it, and return when it accepts requests; does nothing if it is up.

        Raises `EmbeddedUnavailable` with the end of its log if it does not start within a minute.
        """
        if self.pid is not None:
            return
        self._end()
        log = self.folder.path / "server.log"
        with log.open("wb") as output:
            process = self._process = subprocess.Popen(
                [*self._command, *self._arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=output,
                cwd=self.home,
                start_new_session=True,
            )
        if process.stdout is None or not _says_ready(process.stdout):
            self._end()
            raise EmbeddedUnavailable(
                f"{self._name} did not start within {START_SECONDS} "
                f"s:\n{log.read_text(errors='replace')[-2000:]}"
            )

    def stop(self) -> None:
        """Shut it down cleanly, or kill it after 30 s; does nothing if it is down."""
        if self.pid is not None and self._process is not None:
            self.resume()
            self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(STOP_SECONDS)
        self.kill()

    def kill(self) -> None:
        """Kill it with SIGKILL and return when it has ended; does nothing if it is down."""
        self._end()

    def restart(self) -> None:
        """Shut it down cleanly if it is up, and start it."""
        self.stop()
        self.start()

    def pause(self) -> None:
        """Freeze it (SIGSTOP); returns when it has stopped, since a signal takes its time."""
        processes.send(processes.find_in(self.home), signal.SIGSTOP)
        if (pid := self.pid) is not None:
            with contextlib.suppress(ChildProcessError):  # a forked child's parent waits for it
                os.waitid(os.P_PID, pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def resume(self) -> None:
        """Continue it (SIGCONT)."""
        processes.send(processes.find_in(self.home), signal.SIGCONT)

    def close(self) -> None:
        """Kill it and remove its folder. Idempotent; does nothing in a forked child."""
        if self.folder.is_ours:
            if self.home.exists():
                self.kill()
            self.folder.remove()

    def _end(self) -> None:
        """Kill the processes that work in the home, and close their output."""
        if not processes.kill_all_in(self.home, STOP_SECONDS):
            raise EmbeddedUnavailable(f"the server is still there {STOP_SECONDS} s after SIGKILL")
        process, self._process = self._process, None
        if process is not None:
            process.wait()
            if process.stdout is not None:
                process.stdout.close()


def _java() -> str:
    """The program `java`, from `JAVA_HOME` or the path."""
    home = os.environ.get("JAVA_HOME")
    found = shutil.which("java", path=str(Path(home) / "bin")) if home else None
    found = found or shutil.which("java")
    if found is None:
        raise EmbeddedUnavailable("no java: install a Java runtime, 17 or newer, or set JAVA_HOME")
    return found


def _jars(pom: str) -> Path:
    try:
        return _maven.fetch(PROGRAMS / pom)
    except MissingJars as error:
        raise EmbeddedUnavailable(str(error)) from error


def _says_ready(output: IO[bytes]) -> bool:
    """Whether the program prints it in time; a program that ends prints nothing."""
    return bool(select.select([output], [], [], START_SECONDS)[0]) and output.readline().startswith(
        b"ready"
    )
