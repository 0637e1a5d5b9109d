"""Ports for servers that may go down and come back."""

from __future__ import annotations

import contextlib
import socket
from random import SystemRandom

from ._require import EmbeddedUnavailable

PORTS = range(15_000, 32_000)
"""Below the ports that systems give to outgoing connections: nobody takes the server's while it is
down, not even its own clients.
"""


def free_port() -> int:
    """A port of loopback that nobody listens on."""
    for port in SystemRandom().sample(PORTS, 100):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise EmbeddedUnavailable(f"no free port among {PORTS}")
