"""A real schema registry for tests: Apicurio, with the interface of Confluent's; also runs as root."""

from __future__ import annotations

import contextlib
import http.client
import shutil
import time
from functools import partial
from typing import TYPE_CHECKING

from ..._core import cache
from ..._core.errors import MissingJars
from ..._core.public import publish
from ...testing.servers.java import PROGRAMS, find_java
from ...testing.servers.program import START_SECONDS, EmbeddedServer, ServerProgram, free_port
from ...testing.servers.require import EmbeddedUnavailable

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Generator
    from pathlib import Path

_PATH = "/apis/ccompat/v7"
_LOOK_EVERY = 0.05


class EmbeddedRegistry(EmbeddedServer):
    """One schema registry on loopback, without security.

    Created by `embedded_registry`. Its data is in memory: `kill` and `stop` lose it, `pause` does not.
    All methods block, for seconds: call them through `asyncio.to_thread` in a program with other work.
    Not thread-safe.
    """

    def __init__(self, heap: str) -> None:
        java, program = find_java(), next(_folder().glob("*-runner.jar"))
        self.port = free_port()
        server = self._server = ServerProgram("Registry", self._is_ready)
        settings = {
            "quarkus.http.host": "127.0.0.1",
            "quarkus.http.port": str(self.port),
            "quarkus.log.console.stderr": "true",
        }
        flags = [f"-Xmx{heap}", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
        given = [f"-D{name}={value}" for name, value in settings.items()]
        server.configure([java, *flags, *given, "-jar", str(program)])

    @property
    def url(self) -> str:
        """The URL for `SchemaRegistry`. Stays the same across restarts."""
        return f"http://127.0.0.1:{self.port}{_PATH}"

    def _programs(self) -> list[ServerProgram]:
        return [self._server]

    def _is_ready(self, process: subprocess.Popen[bytes]) -> bool:
        until = time.monotonic() + START_SECONDS
        while process.poll() is None and time.monotonic() < until:
            client = http.client.HTTPConnection("127.0.0.1", self.port, timeout=START_SECONDS)
            with contextlib.closing(client), contextlib.suppress(OSError):
                client.request("GET", f"{_PATH}/subjects")
                if client.getresponse().status == 200:
                    return True
            time.sleep(_LOOK_EVERY)
        return False

    def __repr__(self) -> str:
        return f"EmbeddedRegistry(url={self.url!r}, pid={self.pid})"


def _folder() -> Path:
    """Return the folder of the program, which the first call fetches and unpacks."""
    try:
        archive = next(cache.fetch(PROGRAMS / "registry.xml").glob("*.tar.gz"))
        return cache.made_once(archive.name.removesuffix(".tar.gz"), partial(_unpack, archive))
    except (MissingJars, OSError) as error:
        raise EmbeddedUnavailable(str(error)) from error


def _unpack(archive: Path, aside: Path) -> Path:
    shutil.unpack_archive(archive, aside / "program", filter="data")
    return aside / "program"


@contextlib.contextmanager
def embedded_registry(*, heap: str = "256m") -> Generator[EmbeddedRegistry, None, None]:
    """Start a schema registry on loopback; kill it and remove its data when the context ends.

    Blocks while starting, about four seconds; the first time also while Maven fetches it (142 MB)
    into the user's cache folder. If this process ends without leaving the context, by SIGTERM, SIGKILL
    or a crash, the server is ended too.

    Args:
        heap: the server's memory, in the form of Java's `-Xmx`.

    Raises:
        EmbeddedUnavailable: Java or Maven is missing, or the server cannot be started; the message
            gives the reason.
    """
    server = EmbeddedRegistry(heap)
    try:
        server.start()
        yield server
    finally:
        server.close()


publish("sluicegate.testing", EmbeddedRegistry, embedded_registry)
