"""What nats-py keeps to itself, and a connection needs: answers to pings, and an end at once.

Written for nats-py 2.10 to 2.16.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, cast

from nats.aio.client import PING_PROTO, Client
from nats.errors import OutboundBufferLimitError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from nats.aio.msg import Msg


class PatientClient(Client):
    """nats-py's client, whose `flush` tells the truth and can be given up.

    1. nats-py's own writes a ping before what was published earlier: its answer says nothing about
       that. Here the ping comes after it.
    2. nats-py's own ends its reader when the server answers a ping after the timeout of `flush`, or
       after its cancellation: it sets the result of a future that is cancelled. The connection then
       looks open, and nothing is received any more. Here such an answer is ignored.
    3. Headers that are those of the message before, byte for byte, are not parsed again: a consumer
       that is pinned gets the same one with each message.
    """

    def __init__(self) -> None:
        super().__init__()
        self._headers = b""
        self._parsed: dict[str, str] | None = None

    async def _process_headers(self, headers: bytes | None) -> dict[str, str] | None:
        if not headers:
            return None
        if headers != self._headers:
            parse: Callable[[bytes], Awaitable[dict[str, str] | None]]
            parse = vars(Client)["_process_headers"].__get__(self)
            self._parsed = await parse(headers)
            self._headers = headers
        return None if self._parsed is None else self._parsed.copy()

    async def _send_ping(self, future: asyncio.Future[Any] | None = None) -> None:
        made = asyncio.get_running_loop().create_future() if future is None else future
        self._waiting.append(made)
        await self._send_command(PING_PROTO)
        await self._flush_pending()

    async def _process_pong(self) -> None:
        waiting = self._waiting
        if waiting and waiting[0].done():
            waiting[0] = asyncio.get_running_loop().create_future()
        await super()._process_pong()

    @property
    def _waiting(self) -> list[asyncio.Future[Any]]:
        """Those of the pings without an answer, in their order."""
        return cast("list[asyncio.Future[Any]]", vars(self)["_pongs"])

    def forget_unwritten(self) -> None:
        """Drop what would be sent once there is a connection again, of callers that gave it up."""
        self._pending.clear()
        self._pending_data_size = 0

    def cut(self) -> None:
        """Close the socket at once; does nothing without one."""
        writer: Any = getattr(self._transport, "_io_writer", None)
        if writer is not None:
            writer.transport.abort()

    async def listen(self, subject: str, callback: Callable[[Msg], Awaitable[None]]) -> None:
        """Subscribe, as `subscribe` does, whose types are open."""
        subscribe: Callable[..., Awaitable[object]] = vars(Client)["subscribe"]
        await subscribe(self, subject, cb=callback)

    async def send(self, commands: bytes) -> None:
        """Send commands, which are checked: a newline where none belongs would end one.

        Does not suspend; `pending_size` is below 0. Raises `OutboundBufferLimitError` without a
        connection.
        """
        if not self.is_connected:
            raise OutboundBufferLimitError
        await self._send_command(commands)
        await self._flush_pending()

    async def ping(self) -> asyncio.Future[Any]:
        """A future that is done when the server has taken everything that was sent before.

        It is never done if the connection is lost. Does not suspend.
        """
        made = asyncio.get_running_loop().create_future()
        await self._send_ping(made)
        return made
