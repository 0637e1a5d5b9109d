"""The endpoint of an open sink: connected to one address, and to another one after a failure.

1. A datagram is sent once the kernel has accepted it. If the send buffer is full, the sink waits.
2. If nothing listens at the port, the host may report it with ICMP. The kernel returns that error
   for some earlier datagram, at the next one, which it does not send. So the next datagram is sent
   by a new endpoint, to each current address of the name in turn, and the sink waits up to
   `PROBE_SECONDS` for its refusal. Only such a datagram is known to be refused.
3. A name with several addresses (`localhost`: `::1` and `127.0.0.1`) starts in the same way, since
   a socket can be "connected" to any of them whether or not something listens there.
4. A receiver that moves to another address often leaves nothing behind that reports the loss. So the
   name is looked up again every `LOOK_EVERY` seconds, and the sink leaves an address that the name
   no longer has.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import math
import socket
from contextlib import suppress
from typing import TYPE_CHECKING, Any, cast

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
_MOVED = "%s: the name no longer has the address %s, so datagrams sent there lately may be lost"
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
    """One endpoint at a time. Used in one event loop, by one write at a time."""

    def __init__(self, host: str, port: int, *, timeout: float) -> None:
        self._host = host
        self._port = port
        self._timeout = timeout
        self._endpoint: UdpEndpoint | None = None
        self._address: Any = None
        """The address of the endpoint."""
        self._look_at = 0.0
        """The time of the next lookup."""
        self._log_at = -math.inf
        """The time from which a loss is logged again."""

    @property
    def place(self) -> str:
        """The receiver's address in messages."""
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"{host}:{self._port}"

    async def open(self) -> None:
        """Look up the name. Suspends; raises `UnavailableError`."""
        addresses = await self._addresses()
        if len(addresses) == 1:
            try:
                self._endpoint = await connect(addresses[0])
            except OSError as error:
                raise self._error(error) from error
            self._address = addresses[0][4]

    def close(self) -> None:
        """Close the endpoint. Datagrams that the kernel has accepted are still sent."""
        endpoint, self._endpoint = self._endpoint, None
        if endpoint is not None:
            endpoint.close()

    async def send(self, data: bytes) -> None:
        """Send one datagram; suspends while the send buffer is full. Raises a `SinkError` if it was
        not sent, or is known to be refused.
        """
        if self._endpoint is not None and LOOP_CLOCK.now() >= self._look_at:
            await self._leave_old_address()
        if self._endpoint is not None:
            try:
                await self._endpoint.send(data, self._timeout)
            except OSError as error:  # possibly about an earlier datagram
                self.close()
                self._log_loss(error)
            except BaseException:
                self.close()
                raise
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
        failure: OSError | None = None
        for address in await self._addresses():
            endpoint: UdpEndpoint | None = None
            try:
                endpoint = await connect(address)
                await endpoint.send(data, self._timeout)
                await endpoint.hear(PROBE_SECONDS)
            except OSError as error:
                failure = error
                if endpoint is not None:
                    endpoint.close()
            except BaseException:
                if endpoint is not None:
                    endpoint.close()
                raise
            else:
                self._endpoint, self._address = endpoint, address[4]
                return
        assert failure is not None, "a name has an address"
        raise self._error(failure) from failure

    async def _leave_old_address(self) -> None:
        """Close the endpoint if the name no longer has its address. Without an answer, it stays."""
        try:
            addresses = await self._addresses()
        except UnavailableError:
            self._look_at = LOOP_CLOCK.now() + LOOK_EVERY
            return
        if self._address not in [found[4] for found in addresses]:
            log_safely(logger, logging.INFO, _MOVED, self.place, self._address[0])
            self.close()

    async def _addresses(self) -> Sequence[Any]:
        loop = asyncio.get_running_loop()
        try:
            async with LOOP_CLOCK.timeout_at(LOOP_CLOCK.now() + self._timeout):
                found = await loop.getaddrinfo(self._host, self._port, type=socket.SOCK_DGRAM)
        except TimeoutError as error:
            told = f"{self.place}: the name was not found within {self._timeout:g} s (timeout)"
            raise UnavailableError(told) from error
        except (OSError, UnicodeError) as error:
            raise UnavailableError(
                f"{self.place}: the name cannot be looked up: {error}"
            ) from error
        self._look_at = LOOP_CLOCK.now() + LOOK_EVERY
        return found

    def _error(self, error: OSError) -> SinkError:
        told = f"{self.place}: {error.strerror or error}"
        repair = _REPAIRS.get(error.errno or 0)
        if repair is not None:
            return caused(RefusedError(told, repair=repair), error)
        return caused(UnavailableError(told), error)


class UdpEndpoint(asyncio.DatagramProtocol):
    """A datagram endpoint, and the error that the kernel has reported for it."""

    _datagrams: asyncio.DatagramTransport

    def __init__(self) -> None:
        self._error: OSError | None = None
        self._is_full = False
        self._changed = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Report each datagram that the kernel does not accept at once."""
        self._datagrams = cast("asyncio.DatagramTransport", transport)
        cast("asyncio.WriteTransport", transport).set_write_buffer_limits(0)

    def pause_writing(self) -> None:
        """Note that the send buffer is full."""
        self._is_full = True

    def resume_writing(self) -> None:
        """Note that the kernel has accepted the last datagram."""
        self._is_full = False
        self._changed.set()

    def error_received(self, exc: Exception) -> None:
        """Note the first error."""
        self._error = self._error or cast("OSError", exc)
        self._changed.set()

    async def send(self, data: bytes, timeout: float) -> None:
        """Pass a datagram to the kernel. Suspends while the send buffer is full.

        Raises `OSError` if the kernel does not accept it, and `UnavailableError` if the buffer stays
        full for `timeout` seconds. After an error, the endpoint sends nothing.
        """
        if self._error is None:
            self._datagrams.sendto(data)
        if self._error is not None:
            raise self._error
        if self._is_full:
            await self.hear(timeout)
        if self._is_full:
            raise UnavailableError(f"the send buffer was full for {timeout:g} s (timeout)")

    async def hear(self, within: float) -> None:
        """Wait for an error of the kernel, or for room in a full send buffer. Raises the error."""
        self._changed.clear()
        if self._error is None:
            with suppress(TimeoutError):
                async with LOOP_CLOCK.timeout_at(LOOP_CLOCK.now() + within):
                    await self._changed.wait()
        if self._error is not None:
            raise self._error

    def close(self) -> None:
        """Close the socket; a datagram that the kernel has not accepted is dropped."""
        self._datagrams.abort()


async def connect(found: Any) -> UdpEndpoint:
    """Open an endpoint that sends to one address. Raises `OSError`."""
    family, kind, protocol, _, address = found
    made = socket.socket(family, kind, protocol)
    try:
        made.setblocking(False)
        made.connect(address)
        loop = asyncio.get_running_loop()
        _, endpoint = await loop.create_datagram_endpoint(UdpEndpoint, sock=made)
    except BaseException:
        made.close()
        raise
    return endpoint
