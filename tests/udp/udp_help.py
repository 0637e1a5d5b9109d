"""A receiver of datagrams on this machine."""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Self

ROOM = 4 << 20


class Receiver:
    """A bound socket. The kernel delivers datagrams of this machine before `send` returns."""

    def __init__(self, host: str = "127.0.0.1", port: int = 0) -> None:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._socket = socket.socket(family, socket.SOCK_DGRAM)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, ROOM)
        self._socket.bind((host, port))
        self._socket.setblocking(False)
        self.host = host
        self.port: int = self._socket.getsockname()[1]
        self._received: list[bytes] = []

    async def next(self) -> bytes:
        """Wait for the next datagram."""
        return await asyncio.get_running_loop().sock_recv(self._socket, 1 << 16)

    def datagrams(self) -> list[bytes]:
        """All datagrams so far."""
        while True:
            try:
                self._received.append(self._socket.recv(1 << 16))
            except BlockingIOError:
                return self._received

    def lines(self) -> list[str]:
        """The records in them."""
        return [line for each in self.datagrams() for line in each.decode().split("\n")]

    def close(self) -> None:
        """Stop listening."""
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
