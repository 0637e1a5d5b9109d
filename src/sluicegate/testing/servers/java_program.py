"""The program of a Java server: one source file, compiled once on a machine.

1. The classes are in the user's cache, named after the source and the jars on its class path.
2. They have the version of the oldest supported Java, so every newer one loads them.
3. Without a compiler, or a cache that can be written, `java` gets the source file: it compiles it at
   each start, or reports why it cannot.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
from functools import partial
from typing import TYPE_CHECKING

from ..._core.cache import made_once

if TYPE_CHECKING:
    from pathlib import Path

COMPILE_SECONDS = 60
_RELEASE = "17"
_COMPILER = "jdk.compiler/com.sun.tools.javac.Main"


def program_of(java: str, source: Path, jars: Path) -> list[str]:
    """Return the arguments of `java` that run the program of a source file with these jars.

    Blocks while the first call compiles it, for a second or two.

    Args:
        java: the program `java`.
        source: the file, named after its public class, which has the function `main`.
        jars: the folder of its class path.
    """
    try:
        classes = made_once(_name(source, jars), partial(_compiled, java, source, jars))
    except (OSError, RuntimeError, subprocess.SubprocessError):
        return ["-cp", f"{jars}/*", str(source)]
    return ["-cp", f"{classes}{os.pathsep}{jars}/*", source.stem]


def _name(source: Path, jars: Path) -> str:
    digest = hashlib.sha256(source.read_bytes())
    for jar in sorted(jars.glob("*.jar")):
        digest.update(f"\n{jar.name} {jar.stat().st_size}".encode())
    return f"{source.stem.lower()}-program-{digest.hexdigest()[:12]}"


def _compiled(java: str, source: Path, jars: Path, aside: Path) -> Path:
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
