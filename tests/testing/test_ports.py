"""Ports that are reserved for a server until the process ends.

White box: the reservation, which servers of tests alone use.
"""

from __future__ import annotations

import socket

import pytest

from sluicegate.testing import EmbeddedUnavailable
from sluicegate.testing.servers import program
from sluicegate.testing.servers.program import free_port


def test_a_port_is_reserved_until_its_server_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another reservation does not get it; the server does, again and again."""
    port = free_port()
    monkeypatch.setattr(program, "PORTS", [port] * 100)
    with pytest.raises(EmbeddedUnavailable, match="no free port"):
        free_port()
    for _ in range(2):
        with socket.create_server(("127.0.0.1", port)):
            pass
