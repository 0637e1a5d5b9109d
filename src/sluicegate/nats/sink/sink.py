"""The sink for NATS subjects."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..._core import checks
from ..._core.batch import RowBatch
from ..._core.errors import ClosedError
from ..._core.keywords import known_arguments
from ..._core.opening import Openable
from ..._core.sink import Capabilities
from ..._core.trace_context import item_traces
from ..._core.values.encoding import getter
from ..options import NatsOptions
from .messages import MessageMaker, checked_subject

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from contextlib import AsyncExitStack
    from datetime import timedelta
    from uuid import UUID

    from ..._core.batch import Batch
    from ..._core.sink import WriteResult
    from ..._core.values.encoding import Getter
    from .channel import PublishChannel


@known_arguments()
class NatsSink(Openable):
    """Publishes items as messages to NATS subjects, and waits until JetStream has stored each one.

    Args:
        subject: the subject, or a function from an item to it.
        subject_field: the field that contains an item's subject; instead of `subject`.
        servers: `"nats://host:4222"`, several of these separated by commas, or a list. An address
            may contain `user:password@` or `token@`, which is never shown.
        value: the field that contains a message's payload, or a function from an item to it: bytes,
            a string, or `None` for an empty payload. Default: bytes unchanged, anything else as
            JSON.
        headers: the field that contains the headers, or a function from an item to them: a mapping
            from names to strings, or pairs of strings.
        message_id: the field that contains the id by which a stream recognizes a message that it
            already has (`Nats-Msg-Id`), or a function from an item to it: a string, a whole number
            or a UUID, or `None` for a message without an id. Default: an id that is the same in
            every retry of a write. A stream remembers ids for its `duplicate_window`, two minutes
            by default.
        stream: the name of the stream that must store the messages; default: any stream with their
            subject.
        max_in_flight: maximum number of messages of a write without a reply; default 1,000.
        ack_timeout: seconds without any reply after which the outcome of messages in flight is
            unknown; default 5.
        connect_timeout: seconds for each attempt to reach a server; default 2.
        client: other options of nats-py's `connect`, by name: `user`, `password`, `token`,
            `nkeys_seed`, `user_credentials`, `tls` (an `SSLContext`, or a function that returns
            it), `name`, `inbox_prefix`, `reconnect_time_wait`, ... Their values are never shown.

    The messages of a write are stored in their order. In a batch with keys, a message is sent once
    the previous message of its key is stored.

    Raises `ConfigError` for a bad argument and `MissingExtra` without nats-py. Constructing does
    not suspend and connects to nothing. Opening suspends; it connects. It raises `RefusedError` for
    a refused login or certificate and for a user without permission to receive replies,
    `UnavailableError` if no server responds, and `ConfigError` for credentials that cannot be read.
    A lost connection is reopened, without a time limit.
    """

    _run_time = ("_channel",)

    def __init__(
        self,
        subject: str | Callable[[Any], str] | None = None,
        *,
        servers: str | Sequence[str],
        subject_field: str | None = None,
        value: str | Callable[[Any], bytes | str | None] | None = None,
        headers: str
        | Callable[[Any], Mapping[str, str] | Sequence[tuple[str, str]] | None]
        | None = None,
        message_id: str | Callable[[Any], str | int | UUID | None] | None = None,
        stream: str | None = None,
        max_in_flight: int = 1_000,
        ack_timeout: float | timedelta = 5.0,
        connect_timeout: float | timedelta = 2.0,
        **client: Any,
    ) -> None:
        self._subject = _subject(subject, subject_field)
        self._maker = MessageMaker(
            subject=self._subject or _by_item(subject, subject_field),
            value=_part("value", value),
            headers=_part("headers", headers),
            message_id=_part("message_id", message_id),
            stream=None if stream is None else _stream(stream),
        )
        self._max_in_flight = checks.count("max_in_flight", max_in_flight)
        self._ack_timeout = checks.seconds("ack_timeout", ack_timeout, usual=checks.LONG_TIMEOUT)
        self._tls = client.get("tls")  # by this name, for the error message about pickling
        self._options = NatsOptions.of(
            servers=servers, connect_timeout=connect_timeout, client=client, of="NatsSink"
        )
        self._channel: PublishChannel | None = None

    @property
    def capabilities(self) -> Capabilities:
        """`key_prefix_safe`: in a batch with keys, nothing is sent after a failed
        item of the same key.

        Not idempotent: a repeated item becomes another message, except with the same id within the
        stream's `duplicate_window`. It is therefore repeatable.
        """
        return Capabilities(
            key_prefix_safe=True,
            repeatable="item",
            several_destinations=self._subject is None,
        )

    async def _open(self, stack: AsyncExitStack) -> None:
        from .channel import PublishChannel

        channel = PublishChannel(self._options, repr(self))
        await channel.open()
        stack.push_async_callback(channel.close)
        self._channel = channel

    def _terminate(self) -> None:
        if self._channel is not None:
            self._channel.terminate()

    async def write(self, batch: Batch[Any]) -> WriteResult | None:
        """Publish every item of `batch`, in order; suspends until all replies have arrived, or none
        has arrived for `ack_timeout`.

        The details of an item are its `PublishAck`; an item whose id the stream already had is a
        `duplicate`. An item fails with `PermanentError` (it cannot become a message, is larger than
        the server allows, or the stream refuses it),
        `RefusedError` (no such stream, no JetStream, no permission, no room for the account),
        `ThrottledError` (the stream is full and discards new messages), `TransientError` (not
        stored, but a retry may succeed), `UnavailableError` (no connection; not sent),
        `UnknownOutcomeError` (no reply: it may be stored) or `KeyStopped` (after a failed item of
        its key). Raises `ClosedError` while the sink is not open. Messages of a cancelled write
        that were in flight may be stored; a retry detects that by their ids.
        """
        channel = self._channel
        if channel is None:
            raise ClosedError(f"{self!r} is not open; use it in an `async with`")
        from .write import JetStreamWrite, refuse_large

        client = await channel.ready()
        items = batch.items if isinstance(batch, RowBatch) else tuple(batch)
        ids = batch.item_keys() if self._maker.message_id is None else None
        messages = self._maker.messages(items, ids, item_traces(batch))
        refuse_large(messages, client.max_payload)
        return await JetStreamWrite(
            channel,
            client,
            batch,
            messages,
            max_in_flight=self._max_in_flight,
            ack_timeout=self._ack_timeout,
        ).run()

    def __repr__(self) -> str:
        subject = "..." if self._subject is None else repr(self._subject)
        return f"NatsSink({subject}, servers={self._options.place!r})"


def _part(name: str, value: object) -> Getter | None:
    if callable(value):
        checks.function(name, value, "must be a field's name or a function of an item")
    return getter(name, value)


def _by_item(subject: object, field: object) -> Getter:
    name, value = ("subject", subject) if field is None else ("subject_field", field)
    found = _part(name, value)
    assert found is not None, "checked before"
    return found


def _subject(subject: object, field: object) -> str | None:
    """The subject if it is the same for all items; `None` for a function or a field."""
    if (subject is None) == (field is None):
        rule = (
            "must be given, or subject_field"
            if subject is None
            else "cannot be combined with subject_field"
        )
        raise checks.bad("subject", subject, rule)
    if field is not None or callable(subject):
        return None
    try:
        return checked_subject(subject)
    except ValueError as error:
        raise checks.bad("subject", subject, f"must be a subject or a function: {error}") from None


def _stream(stream: object) -> str:
    name = checks.text("stream", stream)
    if any(each.isspace() or each in ".*>/\\" for each in name):
        raise checks.bad("stream", stream, "must be a stream name, without spaces, dots and >")
    return name
