"""The socket of an open sink: connected to one address, and to another one after a failure.

1. A datagram is sent once the kernel has accepted it. If the send buffer is full, the sink waits.
2. If nothing listens at the port, the host may report it with ICMP. The kernel returns that error
   for some earlier datagram at the next call, and does not send the new one. So the next datagram
   is sent over a new socket, to each current address of the name in turn, and the sink waits up to
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
import os
import socket
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from .._core.classify import caused
from .._core.clock import LOOP_CLOCK
from .._core.errors import RefusedError, UnavailableError
from .._core.logs import log_safely

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

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
    """One socket at a time. Used in one event loop, by one write at a time."""

    def __init__(self, host: str, port: int, *, timeout: float) -> None:
        self._host = host
        self._port = port
        self._timeout = timeout
        self._socket: socket.socket | None = None
        self._address: Any = None
        """The address of the socket."""
        self._looks_at = 0.0
        """The time of the next lookup."""
        self._tells_at = -math.inf
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
                self._use(_connected(addresses[0]), addresses[0])
            except OSError as error:
                raise self._error(error) from error

    def close(self) -> None:
        """Close the socket. Datagrams that the kernel has accepted are still sent."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    async def send(self, data: bytes) -> None:
        """Send one datagram; suspends while the send buffer is full. Raises a `SinkError` if it was
        not sent, or is known to be refused.
        """
        if self._socket is not None and LOOP_CLOCK.now() >= self._looks_at:
            await self._leave_old_address()
        if self._socket is not None:
            try:
                await push(self._socket, data, self._timeout)
            except OSError as error:  # possibly about an earlier datagram
                self.close()
                self._tell(error)
            except BaseException:
                self.close()
                raise
            else:
                return
        await self._send_anew(data)

    def _tell(self, error: OSError) -> None:
        """Log the loss of earlier datagrams, at most once per `LOOK_EVERY` seconds."""
        now = LOOP_CLOCK.now()
        if error.errno in _OF_EARLIER and now >= self._tells_at:
            self._tells_at = now + LOOK_EVERY
            log_safely(logger, logging.WARNING, _LOST, self.place, error.strerror)

    async def _send_anew(self, data: bytes) -> None:
        trouble: OSError | None = None
        for address in await self._addresses():
            made: socket.socket | None = None
            try:
                made = _connected(address)
                await push(made, data, self._timeout)
                if (code := await _refused(made)) != 0:
                    raise OSError(code, os.strerror(code))
            except OSError as error:
                trouble = error
                if made is not None:
                    made.close()
            except BaseException:
                if made is not None:
                    made.close()
                raise
            else:
                self._use(made, address)
                return
        assert trouble is not None, "a name has an address"
        raise self._error(trouble) from trouble

    def _use(self, made: socket.socket, found: Any) -> None:
        self._socket, self._address = made, found[4]

    async def _leave_old_address(self) -> None:
        """Close the socket if the name no longer has its address. Without an answer, it stays."""
        try:
            addresses = await self._addresses()
        except UnavailableError:
            self._looks_at = LOOP_CLOCK.now() + LOOK_EVERY
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
        self._looks_at = LOOP_CLOCK.now() + LOOK_EVERY
        return found

    def _error(self, error: OSError) -> SinkError:
        told = f"{self.place}: {error.strerror or error}"
        repair = _REPAIRS.get(error.errno or 0)
        if repair is not None:
            return caused(RefusedError(told, repair=repair), error)
        return caused(UnavailableError(told), error)


async def push(sock: socket.socket, data: bytes, timeout: float) -> None:
    """Pass a datagram to the kernel. Suspends while the send buffer is full.

    Raises `OSError` if the kernel does not accept it, and `UnavailableError` if the buffer stays
    full for `timeout` seconds.
    """
    until: float | None = None
    while True:
        try:
            sock.send(data)
        except BlockingIOError:
            until = LOOP_CLOCK.now() + timeout if until is None else until
        else:
            return
        if not await _ready(sock, until, write=True):
            raise UnavailableError(f"the send buffer was full for {timeout:g} s (timeout)")


async def _refused(sock: socket.socket) -> int:
    """The error that arrives within `PROBE_SECONDS`; 0 if there is none."""
    if not await _ready(sock, LOOP_CLOCK.now() + PROBE_SECONDS, write=False):
        return 0
    return sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)


async def _ready(sock: socket.socket, until: float, *, write: bool) -> bool:
    """Whether the socket becomes writable (or readable) by then."""
    loop = asyncio.get_running_loop()
    woken: asyncio.Future[None] = loop.create_future()
    begin: Callable[..., Any] = loop.add_writer if write else loop.add_reader
    end: Callable[..., Any] = loop.remove_writer if write else loop.remove_reader

    def wake() -> None:
        if not woken.done():
            woken.set_result(None)

    begin(sock, wake)
    try:
        with suppress(TimeoutError):
            async with LOOP_CLOCK.timeout_at(until):
                await woken
    finally:
        end(sock)
    return woken.done() and not woken.cancelled()


def _connected(found: Any) -> socket.socket:
    """Open a socket that sends to one address. Raises `OSError`."""
    family, kind, protocol, _, address = found
    made = socket.socket(family, kind, protocol)
    try:
        made.setblocking(False)
        made.connect(address)
    except BaseException:
        made.close()
        raise
    return made
