"""A Java server in its own folder.

The program is one source file next to the poms, compiled once on a machine. It prints "ready" when
it accepts requests, and shuts down cleanly on SIGTERM.

1. The classes are in the user's cache, named after the source and the jars on its class path.
2. They have the version of the oldest supported Java, so every newer one loads them.
3. Without a compiler, or a cache that can be written, `java` gets the source file: it compiles it
   at each start, or reports why it cannot.
"""

from __future__ import annotations

import hashlib
import os
import select
import shutil
import subprocess
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ..._core import cache as _cache
from ..._core.cache import made_once
from ..._core.errors import MissingJars
from .program import START_SECONDS, ServerProgram
from .require import EmbeddedUnavailable

if TYPE_CHECKING:
    from collections.abc import Sequence


PROGRAMS = Path(__file__).parent / "programs"
_FLAGS = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
COMPILE_SECONDS = 120
"""Timeout of the compiler in seconds."""
_RELEASE = "17"
_COMPILER = "jdk.compiler/com.sun.tools.javac.Main"


class JavaServer(ServerProgram):
    """A server's process, its folder and its output.

    All methods block, for seconds. Not thread-safe.

    Args:
        name: the server's name in messages; `NAME.java` is its program, `name.xml` its pom.
        heap: the server's memory, in the form of Java's `-Xmx`.
        flags: additional arguments of `java`.
        classpath: the folder of its jars; by default, Maven fetches them.
    """

    def __init__(
        self, name: str, heap: str, *, flags: Sequence[str] = (), classpath: Path | None = None
    ) -> None:
        java = find_java()
        jars = classpath or _jars(f"{name.lower()}.xml")
        program = program_of(java, PROGRAMS / f"{name}.java", jars)
        self._program = [java, f"-Xms{heap}", f"-Xmx{heap}", *_FLAGS, *flags, *program]
        super().__init__(name, _says_ready)

    def configure(self, command: Sequence[str]) -> None:
        """Set the Java program's arguments for the next start."""
        super().configure([*self._program, *command])


def find_java() -> str:
    """Find the program `java`, in `JAVA_HOME` or on the path."""
    home = os.environ.get("JAVA_HOME")
    found = shutil.which("java", path=str(Path(home) / "bin")) if home else None
    found = found or shutil.which("java")
    if found is None:
        raise EmbeddedUnavailable("no java: install a Java runtime, 17 or newer, or set JAVA_HOME")
    return found


def _jars(pom: str) -> Path:
    try:
        return _cache.fetch(PROGRAMS / pom)
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


def program_of(java: str, source: Path, jars: Path) -> list[str]:
    """Return the arguments of `java` that run the program of a source file with these jars.

    Blocks while the first call compiles it, for a second or two.

    Args:
        java: the program `java`.
        source: the file, named after its public class, which has the function `main`.
        jars: the folder of its class path.
    """
    try:
        classes = made_once(_name(source, jars), partial(_compile, java, source, jars))
    except (OSError, RuntimeError, subprocess.SubprocessError):
        return ["-cp", f"{jars}/*", str(source)]
    return ["-cp", f"{classes}{os.pathsep}{jars}/*", source.stem]


def _name(source: Path, jars: Path) -> str:
    digest = hashlib.sha256(source.read_bytes())
    for jar in sorted(jars.glob("*.jar")):
        digest.update(f"\n{jar.name} {jar.stat().st_size}".encode())
    return f"{source.stem.lower()}-program-{digest.hexdigest()[:12]}"


def _compile(java: str, source: Path, jars: Path, aside: Path) -> Path:
    classes = aside / "classes"
    path = os.pathsep.join(str(jar) for jar in jars.glob("*.jar"))  # it expands no "*" itself
    options = ["-source", _RELEASE, "-target", _RELEASE, "-proc:none", "-nowarn", "-Xlint:none"]
    subprocess.run(  # all of it is ours
        [java, "-m", _COMPILER, *options, "-cp", path, "-d", str(classes), str(source)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=True,
        timeout=COMPILE_SECONDS,
    )
    return classes
