"""nats-py's client, with the internal parts that a connection needs: responses to pings, an
immediate end, and messages whose subject or headers cannot be decoded.

Written for nats-py 2.10 to 2.16.
"""

# nats-py leaves the types of its internal parts open
# pyright: reportPrivateUsage=false, reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

import asyncio
import inspect
from typing import TYPE_CHECKING, Any

from nats.aio.client import PING_PROTO, Client
from nats.aio.transport import TcpTransport
from nats.errors import OutboundBufferLimitError

if TYPE_CHECKING:
    from collections.abc import Callable


CONNECT_OPTIONS = frozenset(inspect.signature(Client.connect).parameters) - {"self"}
"""The names of the options of nats-py's `connect`."""


class RawHeaders(dict[str, str]):
    """The headers of a message as nats-py parses them: one value per name, and without those that
    cannot be decoded.
    """

    __slots__ = ("entries", "error")

    def __init__(self, parsed: dict[str, str], raw: bytes) -> None:
        super().__init__(parsed)
        self.entries: list[tuple[str, bytes]] = []
        """All headers in order, with the bytes of each value."""
        self.error: Exception | None = None
        """Why one of them cannot be decoded; then the only entry is `headers`, their raw form."""
        try:
            for line in filter(None, raw.split(b"\r\n")[1:]):
                name, colon, value = line.partition(b":")
                if not colon:
                    raise ValueError("a header without a colon")
                self.entries.append((name.strip().decode(), value.removeprefix(b" ")))
        except ValueError as error:
            self.entries, self.error = [("headers", raw)], error


class _EscapedSubject(bytes):
    """A subject that is not UTF-8."""

    def decode(self, encoding: str = "utf-8", errors: str = "surrogateescape") -> str:
        return super().decode(encoding, errors)


class PatientClient(Client):
    """nats-py's client, with a `flush` that is reliable and can be cancelled.

    1. nats-py's own client writes a ping before messages published earlier, so the response proves
       nothing about them. Here the ping follows them.
    2. nats-py's own client ends its reader if the server responds to a ping after the timeout or
       cancellation of `flush`: it sets the result of a cancelled future. The connection then looks
       open, but receives nothing. Here such a response is ignored.
    3. Headers that are identical to those of the previous message are not parsed again: a pinned
       consumer gets the same header with each message. All values are kept (`RawHeaders`).
    4. nats-py's own client ends the connection at a subject that is not UTF-8, and the message
       comes again with the next one. Here its bytes are escaped (`surrogateescape`).
    5. nats-py's own client reconnects only after the written bytes are sent, which a silent
       connection never does. Here its socket is closed immediately.
    """

    def __init__(self) -> None:
        super().__init__()
        self._headers = b""
        self._parsed: RawHeaders | None = None

    async def _process_headers(self, headers: bytes | None) -> RawHeaders | None:
        if not headers:
            return None
        if headers != self._headers:
            parsed = await super()._process_headers(headers)
            self._parsed = RawHeaders(parsed or {}, headers)
            self._headers = headers
        return self._parsed

    def _build_message(
        self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: dict[str, str] | None
    ) -> Any:
        build: Callable[..., Any] = super()._build_message
        try:
            return build(sid, subject, reply, data, headers)
        except UnicodeDecodeError:
            return build(sid, _EscapedSubject(subject), reply, data, headers)

    async def _send_ping(self, future: asyncio.Future[Any] | None = None) -> None:
        made = asyncio.get_running_loop().create_future() if future is None else future
        self._pongs.append(made)
        await self._send_command(PING_PROTO)
        await self._flush_pending()

    async def _process_pong(self) -> None:
        pongs = self._pongs
        if pongs and pongs[0].done():
            pongs[0] = asyncio.get_running_loop().create_future()
        await super()._process_pong()

    async def _process_op_err(self, e: Exception) -> None:
        self.cut()
        await super()._process_op_err(e)

    def forget_unwritten(self) -> None:
        """Drop unwritten data whose callers have stopped waiting, before a reconnect sends it."""
        self._pending.clear()
        self._pending_data_size = 0

    def cut(self) -> None:
        """Close the socket immediately; no effect without one."""
        transport = self._transport
        if isinstance(transport, TcpTransport) and (writer := transport._io_writer) is not None:
            writer.transport.abort()

    async def send(self, commands: bytes) -> None:
        """Send commands that the caller has checked: a misplaced newline would end a command.

        Does not suspend; `pending_size` is below 0. Raises `OutboundBufferLimitError` without a
        connection.
        """
        if not self.is_connected:
            raise OutboundBufferLimitError
        await self._send_command(commands)
        await self._flush_pending()

    async def ping(self) -> asyncio.Future[Any]:
        """Return a future that is done when the server has received all data sent before.

        If the connection is lost, it is never done. Does not suspend.
        """
        made = asyncio.get_running_loop().create_future()
        await self._send_ping(made)
        return made
