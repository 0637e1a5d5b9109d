"""A real OpenSearch for tests, one node, from its jars; also runs as root."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from ..._core.public import publish
from ...testing.servers.java import JavaServer
from ...testing.servers.program import EmbeddedServer, free_port

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping


class EmbeddedOpenSearch(EmbeddedServer):
    """One OpenSearch node on loopback, with its own data and no security.

    Created by `embedded_opensearch`. `kill` ends it immediately, as a crash would; `start` or
    `restart` start it again on the same data and port. All methods block, for seconds: call them
    through `asyncio.to_thread` in a program with other work. Not thread-safe.
    """

    def __init__(self, settings: Mapping[str, str], heap: str) -> None:
        node = self._node = JavaServer("OpenSearch", heap, flags=["-Dlog4j2.disable.jmx=true"])
        self.port = free_port()
        ours = {
            "path.home": str(node.home),
            "cluster.name": "sluicegate",
            "node.name": "sluicegate",
            "discovery.type": "single-node",
            "network.host": "127.0.0.1",
            "http.port": str(self.port),
            "http.type": "netty4",
            "transport.port": str(free_port()),
            "transport.type": "netty4",
            "cluster.routing.allocation.disk.threshold_enabled": "false",
        }
        node.configure([f"{name}={value}" for name, value in {**ours, **settings}.items()])

    @property
    def url(self) -> str:
        """Its address. Stays the same across restarts."""
        return f"http://127.0.0.1:{self.port}"

    def _programs(self) -> list[JavaServer]:
        return [self._node]

    def __repr__(self) -> str:
        return f"EmbeddedOpenSearch(port={self.port}, pid={self.pid})"


@contextlib.contextmanager
def embedded_opensearch(
    settings: Mapping[str, str] | None = None, *, heap: str = "128m"
) -> Generator[EmbeddedOpenSearch, None, None]:
    """Start an OpenSearch server on loopback; kill it and remove its data when the context ends.

    Blocks while starting, about four seconds; the first time also while Maven fetches its jars (44
    MB) into the user's cache folder. If this process ends without leaving the context, by SIGTERM,
    SIGKILL or a crash, server and data are removed too.

    Args:
        settings: server settings by name, none by default, such as `{"http.max_content_length":
            "1mb"}`.
        heap: the server's memory, in the form of Java's `-Xmx`.

    Raises:
        EmbeddedUnavailable: Java, Maven or the jars are missing, or the server cannot be started;
            the message gives the reason.
    """
    server = EmbeddedOpenSearch(settings or {}, heap)
    try:
        server.start()
        yield server
    finally:
        server.close()


publish("sluicegate.testing", EmbeddedOpenSearch, embedded_opensearch)
