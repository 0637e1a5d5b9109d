"""The sink for subjects of NATS."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from ..._clients.fields import getter
from ..._clients.nats.errors import classify
from ..._clients.nats.options import NatsOptions
from ..._core import checks
from ..._core.batch import RowBatch
from ..._core.errors import ClosedError
from ..._core.opening import Openable
from ..._core.sink import Capabilities
from .channel import PublishChannel
from .core_write import CoreWrite
from .messages import MessageMaker, checked_subject
from .write import JetStreamWrite, refuse_large

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from contextlib import AsyncExitStack
    from datetime import timedelta
    from uuid import UUID

    from ..._clients.fields import Getter
    from ..._core.batch import Batch
    from ..._core.errors import ErrorClass
    from ..._core.result import WriteResult


class NatsSink(Openable):
    """Publishes items as messages to subjects of NATS, and waits until JetStream has stored each.

    Args:
        subject: the subject, or a function from an item to it.
        subject_field: the field that holds an item's subject; in place of `subject`.
        servers: `"nats://host:4222"`, several of them with commas, or a list of them. An address
            may hold `user:password@` or `token@`, which is never shown.
        value: the field that holds a message's payload, or a function from an item to it: bytes, a
            text, or `None` for an empty one. Default: bytes as they are, anything else as JSON.
        headers: the field that holds the headers, or a function from an item to them: a mapping by
            name, or pairs, with texts.
        message_id: the field that holds the id by which a stream recognizes a message that it has
            already (`Nats-Msg-Id`), or a function from an item to it: a text, a whole number or a
            UUID. Default: an id that is the same in every retry of a write. A stream remembers ids for its `duplicate_window`, two
            minutes by default.
        deduplicate: whether messages have ids. Default `True`.
        stream: the name of the stream that has to store the messages; default: whichever has their
            subject.
        expected_last_subject_sequence: the field that holds the sequence of the last message of the
            same subject, or a function from an item to it: a message whose subject has another one
            is refused. 0 means no message, `None` any.
        delivery: `"jetstream"` (default), or `"core"`: at most once. A message is delivered then
            when the server has taken it, for those who subscribe at that moment; nothing stores it.
        max_in_flight: messages of a write without an answer at a time; default 1,000.
        ack_timeout: seconds without any answer after which the outcome of messages on their way is
            unknown; default 5.
        connect_timeout: seconds for each try to reach a server; default 2.
        client: other options of nats-py's `connect`, under their names: `user`, `password`,
            `token`, `nkeys_seed`, `user_credentials`, `tls` (an `SSLContext`, or a function that
            makes it), `name`, `inbox_prefix`, `reconnect_time_wait`, ... Their values are never
            shown.

    Order: the messages of a write reach a stream in their order. In a batch with keys a message is
    sent when the one before it of its key is stored.

    Raises `ConfigError` for a bad argument and `MissingExtra` without nats-py. Constructing does not
    suspend and connects to nothing. Opening suspends; it connects. It raises `RefusedError` for a
    refused login or certificate and for a user who may not receive answers, `UnavailableError` if no
    server answers, and `ConfigError` for credentials that cannot be read. A lost connection is made
    again, for as long as it takes.
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
        deduplicate: bool = True,
        stream: str | None = None,
        expected_last_subject_sequence: str | Callable[[Any], int | None] | None = None,
        delivery: Literal["jetstream", "core"] = "jetstream",
        max_in_flight: int = 1_000,
        ack_timeout: float | timedelta = 5.0,
        connect_timeout: float | timedelta = 2.0,
        **client: Any,
    ) -> None:
        self._is_core = checks.choice("delivery", delivery, ("jetstream", "core")) == "core"
        self._makes_ids = _makes_ids(deduplicate, message_id) and not self._is_core
        self._subject = _subject(subject, subject_field)
        self._maker = MessageMaker(
            subject=self._subject or _by_item(subject, subject_field),
            value=_part("value", value),
            headers=_part("headers", headers),
            message_id=_part("message_id", message_id),
            expected_sequence=_part(
                "expected_last_subject_sequence", expected_last_subject_sequence
            ),
            stream=None if stream is None else _stream(stream),
        )
        if self._is_core:
            for name, given in (
                ("stream", stream),
                ("expected_last_subject_sequence", expected_last_subject_sequence),
            ):
                if given is not None:
                    raise checks.bad(name, given, 'needs delivery="jetstream"')
        self._max_in_flight = checks.count("max_in_flight", max_in_flight)
        self._ack_timeout = checks.seconds("ack_timeout", ack_timeout, usual=checks.LONG_TIMEOUT)
        self._tls = client.get("tls")  # by this name, for the error that it cannot be pickled
        self._options = NatsOptions.of(
            servers=servers, connect_timeout=connect_timeout, client=client, of="NatsSink"
        )
        self._channel: PublishChannel | None = None

    @property
    def capabilities(self) -> Capabilities:
        """`key_prefix_safe` with JetStream: in a batch with keys, nothing is sent behind a failed
        item of its key.

        Not idempotent: an item that is written again is another message, except within the
        stream's `duplicate_window` under the same id.
        """
        return Capabilities(
            key_prefix_safe=not self._is_core, several_destinations=self._subject is None
        )

    def classify(self, error: BaseException) -> ErrorClass | None:
        """The class of an error of nats-py; `None` for any other."""
        return classify(error)

    async def _open(self, stack: AsyncExitStack) -> None:
        channel = PublishChannel(self._options, repr(self), replies=not self._is_core)
        await channel.open()
        stack.push_async_callback(channel.close)
        self._channel = channel

    def _terminate(self) -> None:
        if self._channel is not None:
            self._channel.terminate()

    async def write(self, batch: Batch[Any]) -> WriteResult | None:
        """Publish every item of `batch`, in order; suspends until all answers have arrived, or none
        has for `ack_timeout`.

        The details of an item are its `PublishAck`; one that the stream had already, by its id, is
        a `duplicate`. An item fails with `PermanentError` (it cannot become a message, is larger
        than the server allows, or the stream refuses it: another last sequence, for example),
        `RefusedError` (no such stream, no JetStream, no permission, no room for the account),
        `ThrottledError` (the stream is full, and discards new messages), `TransientError` (not
        stored, and may be next time), `UnavailableError` (no connection; not sent),
        `UnknownOutcomeError` (no answer: it may be stored) or `KeyStopped` (behind a failed item of
        its key). Raises `ClosedError` while the sink is not open. What a cancelled write had on its
        way may be stored; a retry finds out by the ids.

        With `delivery="core"` it suspends until the server has taken the messages, and an item has
        no details.
        """
        channel = self._channel
        if channel is None:
            raise ClosedError(f"{self!r} is not open; use it in an `async with`")
        client = await channel.ready()
        items = batch.items if isinstance(batch, RowBatch) else tuple(batch)
        messages = self._maker.messages(items, batch.item_keys() if self._makes_ids else None)
        refuse_large(messages, client.max_payload)
        if self._is_core:
            return await CoreWrite(
                channel, client, batch, messages, ack_timeout=self._ack_timeout
            ).run()
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
        core = ', delivery="core"' if self._is_core else ""
        return f"NatsSink({subject}, servers={self._options.place!r}{core})"


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
    """A subject that is the same for all items; `None` for a function or a field."""
    if (subject is None) == (field is None):
        rule = (
            "must be given, or subject_field"
            if subject is None
            else "leaves no room for subject_field"
        )
        raise checks.bad("subject", subject, rule)
    if field is not None or callable(subject):
        return None
    try:
        return checked_subject(subject)
    except ValueError as error:
        raise checks.bad("subject", subject, f"must be a subject or a function: {error}") from None


def _makes_ids(deduplicate: object, message_id: object) -> bool:
    """Whether the sink makes the ids of messages."""
    if not isinstance(deduplicate, bool):
        raise checks.bad("deduplicate", deduplicate, "must be True or False")
    if message_id is not None and not deduplicate:
        raise checks.bad("deduplicate", deduplicate, "leaves no room for message_id")
    return deduplicate and message_id is None


def _stream(stream: object) -> str:
    name = checks.text("stream", stream)
    if any(each.isspace() or each in ".*>/\\" for each in name):
        raise checks.bad("stream", stream, "must be a stream's name, without spaces, dots and >")
    return name
