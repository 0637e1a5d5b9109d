"""Ports for servers that may stop and restart."""

from __future__ import annotations

import contextlib
import socket
from random import SystemRandom

from .require import EmbeddedUnavailable

PORTS = range(15_000, 32_000)
"""Below the ephemeral range, so no outgoing connection takes the port of a stopped server."""


def free_port() -> int:
    """Find a loopback port without a listener."""
    for port in SystemRandom().sample(PORTS, 100):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise EmbeddedUnavailable(f"no free port among {PORTS}")
