"""The socket of an open sink: connected to one address, and to another one after a failure.

1. A datagram is sent once the kernel has accepted it. If the send buffer is full, the sink waits.
2. If nothing listens at the port, the host may report it with ICMP. The kernel returns that error
   for some earlier datagram, at the next one, which it does not send. So the next datagram is sent
   by a new socket, to each current address of the name in turn, and the sink waits up to
   `PROBE_SECONDS` for its refusal. Only such a datagram is known to be refused.
3. The first datagram is sent in the same way, since a name may have several addresses (`localhost`:
   `::1` and `127.0.0.1`), and so is one every `LOOK_EVERY` seconds, since a receiver that moves to
   another address often leaves nothing behind that reports the loss.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import math
import socket
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from .._core.classify import caused
from .._core.clock import LOOP_CLOCK
from .._core.errors import RefusedError, UnavailableError
from .._core.logs import log_safely

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .._core.errors import SinkError

logger = logging.getLogger("sluicegate.udp")

PROBE_SECONDS = 0.05
LOOK_EVERY = 60.0
"""Seconds between lookups of the name."""
_LOST = (
    "%s: %s; datagrams sent shortly before this report are lost, although their items are delivered"
)
_OF_EARLIER = frozenset({errno.ECONNREFUSED, errno.EHOSTUNREACH, errno.ENETUNREACH})
"""Errors that the network reports for a datagram sent earlier."""
_REPAIRS = {
    errno.EMSGSIZE: "lower max_datagram=, which exceeds the limit of the path to the receiver",
    errno.EACCES: "allow this process to send to the receiver; a broadcast address is not supported",
    errno.EPERM: "allow datagrams to the receiver in the firewall of this machine",
}


class UdpChannel:
    """One socket at a time. Used in one event loop, by one write at a time."""

    def __init__(self, host: str, port: int, *, timeout: float) -> None:
        self._host = host
        self._port = port
        self._timeout = timeout
        self._socket: socket.socket | None = None
        self._addresses: Sequence[Any] = ()
        """The addresses of the name, as last looked up."""
        self._is_fresh = False
        """Whether the addresses have not been used yet."""
        self._look_at = 0.0
        """The time of the next lookup."""
        self._log_at = -math.inf
        """The time from which a loss is logged again."""

    @property
    def place(self) -> str:
        """The receiver's address in messages."""
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"{host}:{self._port}"

    async def look_up(self) -> None:
        """Look up the name. Suspends; raises `UnavailableError`."""
        loop = asyncio.get_running_loop()
        try:
            async with LOOP_CLOCK.timeout_at(LOOP_CLOCK.now() + self._timeout):
                self._addresses = await loop.getaddrinfo(
                    self._host, self._port, type=socket.SOCK_DGRAM
                )
        except TimeoutError as error:
            told = f"{self.place}: the name was not found within {self._timeout:g} s (timeout)"
            raise UnavailableError(told) from error
        except (OSError, UnicodeError) as error:
            raise UnavailableError(
                f"{self.place}: the name cannot be looked up: {error}"
            ) from error
        self._is_fresh, self._look_at = True, LOOP_CLOCK.now() + LOOK_EVERY

    def close(self) -> None:
        """Close the socket. Datagrams that the kernel has accepted are still sent."""
        made, self._socket = self._socket, None
        if made is not None:
            made.close()

    async def send(self, data: bytes) -> None:
        """Send one datagram; suspends while the send buffer is full. Raises a `SinkError` if it was
        not sent, or is known to be refused.
        """
        if self._socket is not None and LOOP_CLOCK.now() < self._look_at:
            try:
                await hand_over(self._socket, data, self._timeout)
            except OSError as error:  # possibly about an earlier datagram
                self._log_loss(error)
            else:
                return
        await self._probe(data)

    def _log_loss(self, error: OSError) -> None:
        """Log the loss of earlier datagrams, at most once per `LOOK_EVERY` seconds."""
        now = LOOP_CLOCK.now()
        if error.errno in _OF_EARLIER and now >= self._log_at:
            self._log_at = now + LOOK_EVERY
            log_safely(logger, logging.WARNING, _LOST, self.place, error.strerror)

    async def _probe(self, data: bytes) -> None:
        """Send a datagram to each address, until none of them reports that it is refused."""
        if not self._is_fresh:
            with suppress(UnavailableError):  # the known addresses may still be right
                await self.look_up()
        self._is_fresh = False
        failure: OSError | None = None
        for family, kind, protocol, _, address in self._addresses:
            self.close()
            self._socket = made = socket.socket(family, kind, protocol)
            try:
                made.setblocking(False)
                made.connect(address)
                await hand_over(made, data, self._timeout)
                await _hear(made)
            except OSError as error:
                failure = error
            except BaseException:
                self.close()
                raise
            else:
                return
        self.close()
        assert failure is not None, "a name has an address"
        raise self._error(failure) from failure

    def _error(self, error: OSError) -> SinkError:
        told = f"{self.place}: {error.strerror or error}"
        repair = _REPAIRS.get(error.errno or 0)
        if repair is not None:
            return caused(RefusedError(told, repair=repair), error)
        return caused(UnavailableError(told), error)


async def hand_over(to: socket.socket, data: bytes, timeout: float) -> None:
    """Pass a datagram to the kernel. Suspends while the send buffer is full.

    Raises `OSError` if the kernel does not accept it, and `UnavailableError` if the buffer stays
    full for `timeout` seconds.
    """
    try:
        async with LOOP_CLOCK.timeout_at(LOOP_CLOCK.now() + timeout):
            await asyncio.get_running_loop().sock_sendall(to, data)
    except TimeoutError as error:
        told = f"the send buffer was full for {timeout:g} s (timeout)"
        raise UnavailableError(told) from error


async def _hear(of: socket.socket) -> None:
    """Wait for an error of the kernel. Raises it, also one that has come with the timeout."""
    loop, heard = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(of, heard.set)
    try:
        with suppress(TimeoutError):
            async with LOOP_CLOCK.timeout_at(LOOP_CLOCK.now() + PROBE_SECONDS):
                await heard.wait()
    finally:
        loop.remove_reader(of)
    with suppress(BlockingIOError):
        of.recv(1)
