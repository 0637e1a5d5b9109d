"""A real OpenSearch for tests, one node, from its jars; also runs as root."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from ..._core.public import publish
from ...testing.servers.java import JavaServer
from ...testing.servers.program import free_port

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping


class EmbeddedOpenSearch:
    """One OpenSearch node on loopback, with its own data and no security.

    Created by `embedded_opensearch`. `kill` ends it at once, as a crash would; `start` or `restart`
    start it again on the same data and port. All methods block, for seconds: call them through
    `asyncio.to_thread` in a program with other work. Not thread-safe.
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

    @property
    def pid(self) -> int | None:
        """The server's process id; `None` while it is down."""
        return self._node.pid

    def start(self) -> None:
        """Start the server and return when it accepts requests; does nothing if it is up.

        Raises `EmbeddedUnavailable` with the end of the server's log if it does not start within a
        minute.
        """
        self._node.start()

    def stop(self) -> None:
        """Shut the server down cleanly, or kill it after 30 s; does nothing if it is down."""
        self._node.stop()

    def kill(self) -> None:
        """Kill the server with SIGKILL and return when it has ended; does nothing if it is down."""
        self._node.kill()

    def restart(self) -> None:
        """Start again on the same data and port; shuts a running server down cleanly first."""
        self._node.restart()

    def pause(self) -> None:
        """Freeze the server (SIGSTOP): requests hang. `kill`, `stop` and `close` still work."""
        self._node.pause()

    def resume(self) -> None:
        """Continue a paused server; does nothing otherwise."""
        self._node.resume()

    def close(self) -> None:
        """Kill the server and remove its data. Idempotent."""
        self._node.close()

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
