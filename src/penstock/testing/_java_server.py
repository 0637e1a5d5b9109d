"""A Java program that serves in a folder of its own: started, frozen, killed, started again, and
cleared away with its data.

1. The program is one source file beside the poms. It says "ready" when it takes requests, and ends
   in order by SIGTERM.
2. A server is recognised by its process's current folder, which is its home; so a process id that
   now belongs to somebody else is never taken for it.
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

from .. import _maven
from .._core.errors import MissingJars
from . import _processes
from ._guarded import GuardedFolder
from ._require import EmbeddedUnavailable

if TYPE_CHECKING:
    from collections.abc import Sequence

JAVA = Path(__file__).parent / "_java"
START_SECONDS = 60
STOP_SECONDS = 30
_FLAGS = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")


class JavaServer:
    """One server's process, its folder and its output. All methods block, for seconds; not for use
    by several threads at once.

    Args:
        name: what the server is called in messages; `NAME.java` beside the poms is its program,
            `name.xml` its pom.
        heap: its memory, as Java's `-Xmx` takes it.
        flags: further arguments of `java`.
        classpath: the folder of its jars, if Maven need not fetch them.
    """

    def __init__(
        self, name: str, heap: str, *, flags: Sequence[str] = (), classpath: Path | None = None
    ) -> None:
        self._name = name
        program = [_java(), f"-Xms{heap}", f"-Xmx{heap}", *_FLAGS, *flags]
        classpath = classpath or _jars(f"{name.lower()}.xml")
        self._command = [*program, "-cp", f"{classpath}/*", str(JAVA / f"{name}.java")]
        self.folder = GuardedFolder(f"penstock-{name.lower()}-")
        self.home = self.folder.path / "home"
        self.home.mkdir()
        self.arguments: Sequence[str] = ()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        """The server's process; `None` while it is down."""
        process = self._process
        return process.pid if process is not None and process.poll() is None else None

    def start(self) -> None:
        """Start it with `arguments`, and return when it takes requests; does nothing if it is up.
        Raises with the end of its log.
        """
        if self.pid is not None:
            return
        self._clear_away()
        log = self.folder.path / "server.log"
        with log.open("wb") as output:
            process = self._process = subprocess.Popen(
                [*self._command, *self.arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=output,
                cwd=self.home,
                start_new_session=True,
            )
        if process.stdout is None or not _says_ready(process.stdout):
            self._clear_away()
            raise EmbeddedUnavailable(
                f"{self._name} did not start within {START_SECONDS} "
                f"s:\n{log.read_text(errors='replace')[-2000:]}"
            )

    def stop(self) -> None:
        """Stop it in order; does nothing if it is down. One that does not end within 30 s is
        killed.
        """
        if self.pid is not None and self._process is not None:
            self.resume()
            self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(STOP_SECONDS)
        self.kill()

    def kill(self) -> None:
        """End it with SIGKILL and return when it is gone; does nothing if it is down."""
        self._clear_away()

    def restart(self) -> None:
        """Stop it in order if it is up, and start it."""
        self.stop()
        self.start()

    def pause(self) -> None:
        """Freeze it (SIGSTOP)."""
        _processes.send(_processes.find_in(self.home), signal.SIGSTOP)

    def resume(self) -> None:
        """Let it go on (SIGCONT)."""
        _processes.send(_processes.find_in(self.home), signal.SIGCONT)

    def close(self) -> None:
        """Kill it and remove its folder. Closing twice is harmless; in a forked child it does
        nothing.
        """
        if self.folder.is_ours:
            if self.home.exists():
                self.kill()
            self.folder.remove()

    def _clear_away(self) -> None:
        """End what works in the home, and let go of its output."""
        if not _processes.kill_all_in(self.home, STOP_SECONDS):
            raise EmbeddedUnavailable(f"the server is still there {STOP_SECONDS} s after SIGKILL")
        process, self._process = self._process, None
        if process is not None:
            process.wait()
            if process.stdout is not None:
                process.stdout.close()


def _java() -> str:
    """The program `java`: of `JAVA_HOME`, or on the path."""
    home = os.environ.get("JAVA_HOME")
    found = shutil.which("java", path=str(Path(home) / "bin")) if home else None
    found = found or shutil.which("java")
    if found is None:
        raise EmbeddedUnavailable("no java: install a Java runtime, 17 or newer, or set JAVA_HOME")
    return found


def _jars(pom: str) -> Path:
    try:
        return _maven.fetch(JAVA / pom)
    except MissingJars as error:
        raise EmbeddedUnavailable(str(error)) from error


def _says_ready(output: IO[bytes]) -> bool:
    """Whether it says so in time; a server that ends says nothing."""
    return bool(select.select([output], [], [], START_SECONDS)[0]) and output.readline().startswith(
        b"ready"
    )
