"""The connection of an open source: sends messages, and detects a lapse of the held messages.

1. Held messages are extended three times per acknowledgement wait, by `beat`. A beat counts once
   the server has answered after it. Without one for the whole wait, the server may have delivered
   held messages to another process: `has_lapsed` is true, and no held message may be settled any
   more.
2. The client may send messages later that were not written when the connection was lost. Therefore
   nothing is sent while there is no connection.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..._core.clock import Signal
from ..._core.errors import UnavailableError
from ..client.connection import ConnectionNews, close, connect

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ..._core.clock import Clock
    from ..client.errors import Denied
    from ..client.options import NatsOptions

REQUEST_WITHIN = 5.0
"""Timeout in seconds for a response of the server."""
IN_A_ROW = 250
"""Messages to send before other tasks run."""
EXTEND, ACK, NAK = b"+WPI", b"+ACK", b"-NAK"
TERM = b"+TERM given up by the consumer"
ADVISORIES = "$js.event.advisory."
"""Subjects, in lower case, that may be denied, since they are only for the log."""


def _nothing() -> None:
    """Do nothing."""


class Channel:
    """One connection. `changed` fires when it is closed, or when a permission is denied."""

    def __init__(self, options: NatsOptions, ack_wait: float, clock: Clock) -> None:
        self._options = options
        self.ack_wait = ack_wait
        """Seconds after which the server redelivers a held message that was not extended."""
        self._clock = clock
        self._client: Any = None
        self._alive_at = clock.now()
        self.denied: Denied | None = None
        """The last publish or subscription that the server has denied."""
        self.trouble: Exception | None = None
        """The error of the last attempt to reconnect."""
        self._is_back: Callable[[], None] = _nothing
        self.changed = Signal()
        self.shortened = Signal()
        """Fires when `ack_wait` is shorter than before."""
        self.is_closed = False

    async def open(self, is_lost: Callable[[], None], is_back: Callable[[], None]) -> None:
        """Connect; the functions are called when the connection is lost, and when it is restored.

        Raises `ConfigError`, `RefusedError` and `UnavailableError`.
        """
        self._is_back = is_back
        news = ConnectionNews(
            lost=is_lost,
            back=self._back,
            closed=self._closed,
            denied=self._denied,
            trouble=self._troubled,
        )
        self._client = await connect(self._options, news)
        self._alive_at = self._clock.now()

    async def close(self) -> None:
        """Close the connection, in a bounded time."""
        if self._client is not None:
            await close(self._client)

    def _back(self) -> None:
        self.trouble = None
        self._is_back()

    def _troubled(self, error: Exception) -> None:
        if not self.is_connected:
            self.trouble = error

    def _closed(self) -> None:
        self.is_closed = True
        self.changed.fire()

    def _denied(self, denied: Denied) -> None:
        if not denied.subject.startswith(ADVISORIES):
            self.denied = denied
            self.changed.fire()

    def forget_denied(self) -> None:
        """Clear the last denial, before the operation is attempted again."""
        self.denied = None

    @property
    def is_connected(self) -> bool:
        """Whether messages can be sent."""
        return self._client is not None and bool(self._client.is_connected)

    def inbox(self) -> str:
        """Return a new subject for responses."""
        return str(self._client.new_inbox())

    async def subscribe(self, subject: str, call: Callable[[Any], Any]) -> Any:
        """Subscribe; `call` is an async function of each message."""
        return await self._client.subscribe(
            subject, cb=call, pending_msgs_limit=0, pending_bytes_limit=0
        )

    async def request(self, subject: str, payload: bytes) -> bytes:
        """Send a request to the server. Raises errors of the client."""
        answer = await self._client.request(subject, payload, timeout=REQUEST_WITHIN)
        data: bytes = answer.data
        return data

    async def publish(self, subject: str, payload: bytes, reply: str = "") -> None:
        """Send one message.

        Raises errors of the client, and `UnavailableError` without a connection.
        """
        if not self.is_connected:
            raise UnavailableError("the connection to NATS is lost")
        await self._client.publish(subject, payload, reply)

    async def send(self, messages: Iterable[tuple[str, bytes]]) -> None:
        """Send messages, and suspend until the server has received them. Raises the errors of
        `publish`.

        Their subjects come from the server, so they contain no characters that would end a command.
        """
        commands = [
            b"PUB %b %d\r\n%b\r\n" % (subject.encode(), len(payload), payload)
            for subject, payload in messages
        ]
        for at in range(0, len(commands), IN_A_ROW):
            if not self.is_connected:
                raise UnavailableError("the connection to NATS is lost")
            await self._client.send(b"".join(commands[at : at + IN_A_ROW]))
            await self._clock.sleep(0)
        if commands:
            await self.flush()

    async def flush(self) -> None:
        """Suspend until the server has received all sent messages. Raises errors of the client."""
        await self._client.flush(timeout=REQUEST_WITHIN)

    # -- extending held messages -------------------------------------------------------------------

    async def beat(self, replies: Iterable[str]) -> None:
        """Extend all held messages; without any, ask the server for an answer. Raises the errors of
        `publish`.
        """
        began, held = self._clock.now(), [*replies]
        await self.extend(held)
        if not held:
            if not self.is_connected:
                raise UnavailableError("the connection to NATS is lost")
            await self.flush()
        self._alive_at = max(self._alive_at, began)

    async def extend(self, replies: Iterable[str]) -> None:
        """Extend some held messages. Raises the errors of `publish`."""
        await self.send([(reply, EXTEND) for reply in replies])

    def expect(self, ack_wait: float) -> None:
        """Set the wait of a consumer without held messages, if it is shorter than requested."""
        if ack_wait < self.ack_wait:
            self.ack_wait = ack_wait
            self._alive_at = self._clock.now()
            self.shortened.fire()

    @property
    def has_lapsed(self) -> bool:
        """Whether held messages may have been delivered to another process."""
        return self._clock.now() - self._alive_at >= self.ack_wait

    def begin_again(self) -> None:
        """Record that no message is held."""
        self._alive_at = self._clock.now()
