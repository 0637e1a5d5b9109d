"""A Java server in its own folder.

The program is one source file beside the poms, compiled once on a machine. It prints "ready" when
it accepts requests, and shuts down cleanly on SIGTERM.
"""

from __future__ import annotations

import os
import select
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from ..._core import cache as _maven
from ..._core.errors import MissingJars
from .java_program import program_of
from .program import START_SECONDS, ServerProgram
from .require import EmbeddedUnavailable

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Sequence

PROGRAMS = Path(__file__).parent / "programs"
_FLAGS = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")


class JavaServer(ServerProgram):
    """A server's process, its folder and its output.

    All methods block, for seconds. Not thread-safe.

    Args:
        name: the server's name in messages; `NAME.java` is its program, `name.xml` its pom.
        heap: the server's memory, in the form of Java's `-Xmx`.
        flags: further arguments of `java`.
        classpath: the folder of its jars; by default, Maven fetches them.
    """

    def __init__(
        self, name: str, heap: str, *, flags: Sequence[str] = (), classpath: Path | None = None
    ) -> None:
        java = _java()
        jars = classpath or _jars(f"{name.lower()}.xml")
        program = program_of(java, PROGRAMS / f"{name}.java", jars)
        self._program = [java, f"-Xms{heap}", f"-Xmx{heap}", *_FLAGS, *flags, *program]
        super().__init__(name, _says_ready)

    def configure(self, command: Sequence[str]) -> None:
        """Set the Java program's arguments for the next start."""
        super().configure([*self._program, *command])


def _java() -> str:
    """Find the program `java`, in `JAVA_HOME` or on the path."""
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


def _says_ready(process: subprocess.Popen[bytes]) -> bool:
    """Return whether the program prints "ready" in time; a program that ends prints nothing."""
    output = process.stdout
    return (
        output is not None
        and bool(select.select([output], [], [], START_SECONDS)[0])
        and output.readline().startswith(b"ready")
    )
