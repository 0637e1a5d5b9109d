"""A server for the probes and metrics of consumers, on the same event loop."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
from typing import TYPE_CHECKING, Any

from .._core.checks import bad, count, text
from .._core.extras import need
from .probe_app import probes

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Generator

    import uvicorn
    from prometheus_client import CollectorRegistry

    from .operated import Operated
    from .probe_app import Probes

LAST_PORT = 65535
GRACE = 1
"""Seconds for open requests at the end."""


@contextlib.asynccontextmanager
async def serve_probes(
    *consumers: Operated,
    host: str = "127.0.0.1",
    port: int = 8080,
    restart_when_stalled: bool = False,
    registry: CollectorRegistry | None = None,
) -> AsyncGenerator[tuple[str, int]]:
    """Serve `probes(*consumers)` over HTTP inside an `async with`, that is `/ready`, `/live` and
    `/metrics`; yield the address.

    Args:
        consumers: the consumers to probe, at least one.
        host: the address to listen on. Every client that reaches it can read keys of records by
            `?verbose`.
        port: 0 selects a free port; default 8080.
        restart_when_stalled: as for `probes`.
        registry: as for `probes`.

    Enter it outside `run`, so that `/ready` answers 503 while the consumer drains. Installs no
    signal handler and no logging, and logs no request. Needs the extra `probes`. Raises `MissingExtra`, `ConfigError`
    for bad arguments, and `OSError` if the address is not available. The exit suspends for about
    0.2 s, and up to one second longer while requests are open.
    """
    app = probes(*consumers, restart_when_stalled=restart_when_stalled, registry=registry)
    text("host", host)
    if count("port", port, least=0) > LAST_PORT:
        raise bad("port", port, f"must be at most {LAST_PORT}")
    server = _server(app)
    with contextlib.closing(_listening(host, port)) as listening:
        task = asyncio.get_running_loop().create_task(server.serve([listening]), name="probes")
        try:
            yield listening.getsockname()[:2]
        finally:
            server.handle_exit(signal.SIGTERM, None)  # as if SIGTERM had arrived
            await task


def _listening(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.create_server((host, port), family=family)
    listening.setblocking(False)
    return listening


def _server(app: Probes) -> uvicorn.Server:
    need("uvicorn", "probes", "serve_probes")
    import uvicorn
    from uvicorn.protocols.http.h11_impl import H11Protocol

    class ProbeConfig(uvicorn.Config):
        """A configuration that leaves logging to the program."""

        def configure_logging(self) -> None:
            """Configure nothing: loggers are shared with other servers of the process."""

    class ProbeProtocol(H11Protocol):
        """HTTP without an access log: uvicorn's own switch changes a logger of the whole process."""

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self.access_log = False

    class ProbeServer(uvicorn.Server):
        """A server that leaves signals to the program."""

        @contextlib.contextmanager
        def capture_signals(self) -> Generator[None]:
            """Capture no signals."""
            yield

    return ProbeServer(
        ProbeConfig(
            app,
            lifespan="off",
            ws="none",
            http=ProbeProtocol,
            timeout_graceful_shutdown=GRACE,
        )
    )
