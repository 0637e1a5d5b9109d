"""The connection of an open source: sends messages and requests, and detects a lapse of the held
messages.

1. Held messages are extended three times per acknowledgement wait, by `beat`. A beat counts once
   the server has answered after it. Without one for the whole wait, the server may have delivered
   held messages to another process: `has_lapsed` is true, and no held message may be settled any
   more.
2. The client may send messages later that were not written when the connection was lost. Therefore
   nothing is sent while there is no connection.
3. Requests about streams and consumers are JSON, since the client's types lack priority groups.
4. A readable consumer is durable, pull-based, and has an acknowledgement for each message. In a new
   consumer, one process at a time is *pinned*: only this process receives messages until it has
   sent no request for the group's timeout, or is unpinned.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from ..._core.clock import LOOP_CLOCK, Signal
from ..._core.errors import ConfigError, SluicegateError, UnavailableError
from ..._core.text import text_of
from ..connection import ConnectionEvents, close, connect, reason_of
from ..errors import api_error

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping

    from ..._core.source import ClaimHost, Troubles
    from ..connection import Denied
    from ..options import NatsOptions
    from .options import ReadOptions

REQUEST_WITHIN = 5.0
"""Timeout in seconds for a response of the server."""
IN_A_ROW = 250
"""Messages to send before other tasks run."""
EXTEND, ACK, NAK = b"+WPI", b"+ACK", b"-NAK"
TERM = b"+TERM given up by the consumer"
ADVISORIES = "$js.event.advisory."
"""Subjects, in lower case, that may be denied, since they are only for the log."""
GROUP = "sluicegate"
"""The priority group of the consumers created here."""
NANOS = 1_000_000_000
"""Nanoseconds per second."""
PIN_SHARE = 0.5
"""Time without requests for which a process stays pinned, as a share of the `ack_wait`."""
NO_CONSUMER = 10_014
NO_STREAM = 10_059
CONSUMER_EXISTS = 10_148
GONE = frozenset({NO_CONSUMER, NO_STREAM})
"""Error codes of the server, as are those above."""
_OTHER = "the consumer %r of the stream %r %s; give another name as durable=, or delete it"


def _nothing() -> None:
    """Do nothing."""


class Channel:
    """One connection. `changed` fires when it is closed, or when a permission is denied."""

    def __init__(self, options: NatsOptions, ack_wait: float) -> None:
        self._options = options
        self.ack_wait = ack_wait
        """Seconds after which the server redelivers a held message that was not extended."""
        self._client: Any = None
        self._alive_at = LOOP_CLOCK.now()
        self.denied: Denied | None = None
        """The last publish or subscription that the server has denied."""
        self.last_error: Exception | None = None
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
        events = ConnectionEvents(
            lost=is_lost,
            back=self._on_back,
            closed=self._on_closed,
            denied=self._on_denied,
            error=self._note_error,
        )
        self._client = await connect(self._options, events)
        self._alive_at = LOOP_CLOCK.now()

    async def close(self) -> None:
        """Close the connection, in a bounded time."""
        if self._client is not None:
            await close(self._client)

    def _on_back(self) -> None:
        self.last_error = None
        self._is_back()

    def _note_error(self, error: Exception) -> None:
        if not self.is_connected:
            self.last_error = error

    def _on_closed(self) -> None:
        self.is_closed = True
        self.changed.fire()

    def _on_denied(self, denied: Denied) -> None:
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
        """Send a request to the server. Raises client errors."""
        answer = await self._client.request(subject, payload, timeout=REQUEST_WITHIN)
        data: bytes = answer.data
        return data

    async def publish(self, subject: str, payload: bytes, reply: str = "") -> None:
        """Send one message.

        Raises client errors, and `UnavailableError` without a connection.
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
            await LOOP_CLOCK.sleep(0)
        if commands:
            await self.flush()

    async def flush(self) -> None:
        """Suspend until the server has received all sent messages. Raises client errors."""
        await self._client.flush(timeout=REQUEST_WITHIN)

    # -- extending held messages -------------------------------------------------------------------

    async def beat(self, replies: Iterable[str]) -> None:
        """Extend all held messages; without any, ask the server for a response. Raises the errors
        of `publish`.
        """
        began, held = LOOP_CLOCK.now(), [*replies]
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
            self._alive_at = LOOP_CLOCK.now()
            self.shortened.fire()

    @property
    def has_lapsed(self) -> bool:
        """Whether held messages may have been delivered to another process."""
        return LOOP_CLOCK.now() - self._alive_at >= self.ack_wait

    def begin_again(self) -> None:
        """Record that no message is held."""
        self._alive_at = LOOP_CLOCK.now()


class RequestRefused(Exception):
    """The server responded to a request with an error."""

    def __init__(self, place: str, code: int, err_code: int, description: str) -> None:
        super().__init__(str(api_error(place, code, err_code, description)))
        self.code = err_code
        """The error code of JetStream."""


class ConsumerState(NamedTuple):
    """The state of a consumer, as reported by the server."""

    name: str
    created: str
    """Creation time: a different time means a different consumer."""
    delivered: int
    """The number of its last delivery."""
    floor: int
    """The sequence number up to which all messages are acknowledged."""
    pending: int
    """Messages that were delivered and not acknowledged."""
    unread: int
    """Messages that were not delivered yet."""
    read_through: int
    """The sequence number of the last delivered message."""
    pulls: int
    """Requests that wait for messages."""
    max_pending: int
    ack_wait: float
    """Seconds; the shortest wait if the consumer has several."""
    group: str | None
    """Its priority group, if it pins one process at a time."""
    pinned: str | None
    """The identity that is currently pinned."""
    pin_for: float
    """Seconds without a request after which it is no longer pinned."""

    @classmethod
    def of(cls, info: Mapping[str, Any]) -> ConsumerState:
        """Build it from the server's response."""
        config = info["config"]
        waits = config.get("backoff") or [config.get("ack_wait", 30 * NANOS)]
        groups: list[str] = config.get("priority_groups") or []
        is_pinned = config.get("priority_policy") == "pinned_client"
        group = (GROUP if GROUP in groups else groups[0]) if is_pinned and groups else None
        states = {each.get("group"): each for each in info.get("priority_groups") or ()}
        return cls(
            info["name"],
            info["created"],
            info["delivered"]["consumer_seq"],
            info["ack_floor"]["stream_seq"],
            info["num_ack_pending"],
            info["num_pending"],
            info["delivered"]["stream_seq"],
            info["num_waiting"],
            config.get("max_ack_pending", 0),
            min(waits) / NANOS,
            group,
            states.get(group, {}).get("pinned_client_id") or None,
            config.get("priority_timeout", 0) / NANOS,
        )


class StreamApi:
    """Requests about one stream. They suspend until the response, and raise client errors,
    or `RequestRefused` if the server refuses.
    """

    def __init__(
        self, request: Callable[[str, bytes], Awaitable[bytes]], options: ReadOptions
    ) -> None:
        self._request = request
        self._options = options
        self._prefix = "$JS.API" if options.domain is None else f"$JS.{options.domain}.API"

    @property
    def prefix(self) -> str:
        """The prefix of request subjects."""
        return self._prefix

    async def stream(self) -> Mapping[str, Any]:
        """Return the server's description of the stream, with `config` and `created`."""
        return await self._ask(f"STREAM.INFO.{self._options.stream}")

    async def consumer(self, partition: int) -> ConsumerState:
        """Return the consumer of a partition. Raises `ConfigError` if it cannot be read."""
        options = self._options
        name = options.consumer(partition)
        info = await self._ask(f"CONSUMER.INFO.{options.stream}.{name}")
        if (reason := self._unfit(info["config"], partition)) is not None:
            raise ConfigError(_OTHER % (name, options.stream, reason))
        return ConsumerState.of(info)

    async def ensure(self, partition: int, first: int | None) -> ConsumerState:
        """Return the consumer of a partition. A missing one is created, if permitted, at `first`."""
        options = self._options
        try:
            return await self.consumer(partition)
        except RequestRefused as error:
            if error.code != NO_CONSUMER or not options.create:
                raise
        try:
            await self._create(partition, first)
        except RequestRefused as error:
            if error.code != CONSUMER_EXISTS:  # another member has created it first
                raise
        return await self.consumer(partition)

    async def _create(self, partition: int, first: int | None) -> None:
        options = self._options
        name, filters = options.consumer(partition), options.filters(partition)
        wait = round(options.ack_wait * NANOS)
        config: dict[str, object] = {
            "durable_name": name,
            "name": name,
            "ack_policy": "explicit",
            "ack_wait": wait,
            "max_ack_pending": options.max_pending,
            "max_deliver": -1,
            "replay_policy": "instant",
            "priority_groups": [GROUP],
            "priority_policy": "pinned_client",
            "priority_timeout": round(wait * PIN_SHARE),
            **options.where(partition, first),
        }
        if len(filters) == 1:
            config["filter_subject"] = filters[0]
        elif filters:
            config["filter_subjects"] = filters
        body = {"stream_name": options.stream, "config": config, "action": "create"}
        await self._ask(f"CONSUMER.CREATE.{options.stream}.{name}", body)

    async def unpin(self, name: str, group: str) -> None:
        """Unpin the process, so that another one can be pinned."""
        await self._ask(f"CONSUMER.UNPIN.{self._options.stream}.{name}", {"group": group})

    async def stored_at(self, first: int, subjects: list[str]) -> str | None:
        """Return the storage time of the first message from `first` on; `None` if there is none."""
        body: dict[str, object] = {"seq": first}
        if len(subjects) == 1:
            body["next_by_subj"] = subjects[0]
        try:
            answer = await self._ask(f"STREAM.MSG.GET.{self._options.stream}", body)
        except RequestRefused:
            return None
        told: str = answer["message"]["time"]
        return told

    async def _ask(self, what: str, body: Mapping[str, object] | None = None) -> Mapping[str, Any]:
        subject = f"{self._prefix}.{what}"
        payload = b"" if body is None else json.dumps(body).encode()
        answer: Mapping[str, Any] = json.loads(await self._request(subject, payload))
        if (error := answer.get("error")) is not None:
            place = f"the stream {self._options.stream!r}"
            code, err_code = error.get("code", 0), error.get("err_code", 0)
            raise RequestRefused(place, code, err_code, error.get("description", ""))
        return answer

    def _unfit(self, config: Mapping[str, Any], partition: int) -> str | None:
        """Return the reason why a consumer with these settings cannot be read; `None` if it can."""
        filters = config.get("filter_subjects") or [config.get("filter_subject") or ">"]
        wanted = self._options.filters(partition)
        if config.get("deliver_subject"):
            return "pushes its messages, but this source pulls"
        if config.get("ack_policy") != "explicit":
            return f"has the ack policy {config.get('ack_policy')!r}, not 'explicit'"
        if not config.get("durable_name"):
            return "is not durable"
        if wanted and sorted(wanted) != sorted(filters):
            return f"reads {', '.join(filters)}, not {', '.join(wanted)}"
        if config.get("headers_only"):
            return "delivers headers only"
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamSession:
    """One connection of an open source."""

    options: ReadOptions
    connection: NatsOptions
    channel: Channel
    api: StreamApi
    host: ClaimHost
    troubles: Troubles

    def reason(self, error: BaseException) -> str:
        """Describe the cause of a failure, for operators."""
        if not self.channel.is_connected and self.channel.last_error is not None:
            error = self.channel.last_error
        denied = self.channel.denied
        if denied is not None and isinstance(error, TimeoutError):
            return f"{self.connection.place} denies it; {denied.repair}"
        if isinstance(error, (RequestRefused, SluicegateError)):
            return text_of(error)
        return reason_of(error, self.connection)
