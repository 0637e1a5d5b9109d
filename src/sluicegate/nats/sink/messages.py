"""Items as messages in the form of the protocol, and JetStream's replies to them. Pure.

1. All payloads of a batch are encoded together. If that raises, each item is converted alone, so
   that only the faulty ones fail.
2. A subject or a header with a newline could contain commands, so it is refused; values are never
   altered.
3. The headers that JetStream interprets are set by arguments of the sink, so an item's own headers
   must not use their names.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, cast
from uuid import UUID

from ..._core.errors import UnknownOutcomeError
from ..._core.text import repr_of
from ..._core.trace_context import NO_TRACE, unless_given
from ..._core.values.encoding import all_to_json, item_error, to_json
from ..errors import NO_RESPONDERS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..._core.trace_context import TraceHeaders
    from ..._core.values.encoding import Getter

_TOKEN = r"(?![*>](?:\.|$))[^\s.\x00-\x1f\x7f]+"  # noqa: S105  # part of a subject
SUBJECT = re.compile(rf"{_TOKEN}(?:\.{_TOKEN})*")
LONGEST_SUBJECT = 3_500
"""In bytes. A server closes the connection after a command of more than 4,096 bytes."""
_NAME = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_BREAK = re.compile(r"[\r\n\0]")
MESSAGE_ID = "Nats-Msg-Id"
EXPECTED_STREAM = "Nats-Expected-Stream"
_OURS = {
    MESSAGE_ID.lower(): "use message_id=",
    EXPECTED_STREAM.lower(): "use stream=",
}
_FIRST = b"NATS/1.0\r\n"


@dataclass(frozen=True, slots=True)
class Messages:
    """The parts of messages with the indices of their items, and an error for every other item."""

    indices: list[int] = field(default_factory=list[int])
    subjects: list[str] = field(default_factory=list[str])
    headers: list[bytes] = field(default_factory=list[bytes])
    """Header blocks; empty for a message without headers."""
    payloads: list[bytes] = field(default_factory=list[bytes])
    errors: dict[int, BaseException] = field(default_factory=dict[int, BaseException])


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageMaker:
    """The parts of a message: constants, or functions of an item."""

    subject: str | Getter
    value: Getter | None
    headers: Getter | None
    message_id: Getter | None
    stream: str | None

    def messages(
        self,
        items: Sequence[Any],
        ids: Sequence[str] | None,
        traces: Sequence[TraceHeaders] | None = None,
    ) -> Messages:
        """The parts of all items' messages; `ids` are used if there is no function for ids, and
        `traces` are added to the headers.

        Does not suspend.
        """
        made = Messages()
        payloads = self._payloads(items)
        for index, item in enumerate(items):
            try:
                payload = self._payload(item) if payloads is None else payloads[index]
                subject = self.subject if isinstance(self.subject, str) else self._subject(item)
                headers = self._headers(
                    item,
                    None if ids is None else ids[index],
                    NO_TRACE if traces is None else traces[index],
                )
            except Exception as error:
                made.errors[index] = item_error("cannot become a message", error)
            else:
                made.indices.append(index)
                made.subjects.append(subject)
                made.headers.append(headers)
                made.payloads.append(payload)
        return made

    def _payloads(self, items: Sequence[Any]) -> list[bytes] | None:
        """The payloads of all items; `None` if each must be encoded alone."""
        if self.value is not None:
            return None
        kinds = {*map(type, items)}
        if kinds <= {bytes}:
            return list(items)
        if bytes in kinds:
            return None
        try:
            return all_to_json(items)
        except Exception:
            return None

    def _payload(self, item: Any) -> bytes:
        if self.value is None:
            return item if isinstance(item, bytes) else to_json(item)
        value = self.value(item)
        if value is None:
            return b""
        if isinstance(value, str):
            return value.encode()
        if isinstance(value, (bytes, bytearray)):
            return bytes(value)
        raise TypeError(f"the value is {type(value).__name__}; expected bytes, a string or None")

    def _subject(self, item: Any) -> str:
        return checked_subject(cast("Getter", self.subject)(item))

    def _headers(self, item: Any, made_id: str | None, trace: TraceHeaders) -> bytes:
        lines: list[str] = []
        message_id = made_id if self.message_id is None else self.message_id(item)
        if message_id is not None:
            lines.append(f"{MESSAGE_ID}: {_id(message_id)}\r\n")
        if self.stream is not None:
            lines.append(f"{EXPECTED_STREAM}: {self.stream}\r\n")
        own = [] if self.headers is None else _header_lines(self.headers(item))
        lines += own
        if trace:
            lines += _header_lines(unless_given(trace, (line.partition(":")[0] for line in own)))
        return b"".join((_FIRST, "".join(lines).encode(), b"\r\n")) if lines else b""


def checked_subject(value: object) -> str:
    """Validate a subject to publish to. Raises `ValueError`."""
    if not isinstance(value, str) or not SUBJECT.fullmatch(value):
        rule = "use tokens separated by dots, without spaces or wildcards"
        raise ValueError(f"{repr_of(value)} is not a subject to publish to; {rule}")
    if len(value.encode()) > LONGEST_SUBJECT:
        raise ValueError(f"the subject is longer than {LONGEST_SUBJECT:,} bytes")
    return value


def command(subject: str, reply: str, headers: bytes, payload: bytes) -> bytes:
    """The command that publishes one message; `reply` is empty or ends with a space."""
    if not headers:
        return b"PUB %b %b%d\r\n%b\r\n" % (
            subject.encode(),
            reply.encode(),
            len(payload),
            payload,
        )
    size = len(headers)
    return b"HPUB %b %b%d %d\r\n%b%b\r\n" % (
        subject.encode(),
        reply.encode(),
        size,
        size + len(payload),
        headers,
        payload,
    )


def _header_lines(headers: object) -> list[str]:
    if headers is None:
        return []
    pairs = cast("Any", headers.items() if isinstance(headers, Mapping) else headers)
    return [_header(*_pair(each)) for each in pairs]


def _pair(given: Any) -> Any:
    """A header as a pair; a mapping with `key` and `value` is the form of Spark's rows."""
    return (given["key"], given["value"]) if isinstance(given, Mapping) else given


def _header(name: object, value: object) -> str:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ValueError(
            f"{repr_of(name)} is not a valid header name; use letters, digits, '-', '_'"
        )
    if (why := _OURS.get(name.lower())) is not None:
        raise ValueError(f"the header {name!r} is set by the sink: {why}")
    if name.lower().startswith("nats-expected-last-"):
        raise ValueError(f"the header {name!r} would refuse a message that is sent again")
    return f"{name}: {_text(f'the header {name!r}', value)}\r\n"


def _text(what: str, value: object) -> str:
    if isinstance(value, bytes):
        value = value.decode()
    if not isinstance(value, str):
        raise TypeError(f"{what} is {type(value).__name__}; expected a string")
    if _BREAK.search(value):
        raise ValueError(f"{what} has a line break")
    return value


def _id(value: object) -> str:
    """The message id as text; numbers and UUIDs are converted."""
    is_plain = isinstance(value, (int, UUID)) and not isinstance(value, bool)
    return str(value) if is_plain else _text("the message id", value)


class PublishAck(NamedTuple):
    """The place of a stored message; the details of its item's receipt."""

    stream: str
    sequence: int
    duplicate: bool = False
    """Whether the stream already had a message with this id; it was not stored again."""


class NoStream:
    """No stream stores the subject."""


NO_STREAM = NoStream()


class Refusal(NamedTuple):
    """An error from JetStream."""

    code: int
    err_code: int
    description: str


Answer = PublishAck | NoStream | Refusal | UnknownOutcomeError


def parse_reply(data: bytes, headers: Mapping[str, str] | None) -> Answer:
    """Parse the reply to a publish."""
    if not data and headers and headers.get("Status") == NO_RESPONDERS:
        return NO_STREAM
    try:
        told: Any = json.loads(data)
        if (error := told.get("error")) is not None:
            return Refusal(int(error["code"]), int(error["err_code"]), str(error["description"]))
        return PublishAck(str(told["stream"]), int(told["seq"]), bool(told.get("duplicate")))
    except (ValueError, LookupError, TypeError, AttributeError):
        return UnknownOutcomeError(
            "the reply is not from JetStream; does another subscriber reply on the subject?"
        )
