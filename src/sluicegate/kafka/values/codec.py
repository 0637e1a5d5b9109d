"""What the codecs have in common: the framing of records, subjects, and the functions that they give.

1. A framed value is a byte 0, the schema's id in four bytes, and the contents. With the newer framing the
   id is in a header, `__value_schema_id` or `__key_schema_id`, as a byte 0 and an id or as a byte 1 and a
   GUID, and the value is the contents alone. Both are read; the first is written.
2. `None` is a tombstone in both directions.
3. Anything else that cannot be decoded is a `DecodeError`: poison for its record alone.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, cast
from uuid import UUID

from ..._core import checks
from ..._core.errors import SinkError
from ..._core.values.encoding import getter
from ...consumer.handling.results import DecodeError
from .registry import Schema, SchemaRegistry

if TYPE_CHECKING:
    from collections.abc import Callable

    from ...consumer.lanes.message import Message

Part = Literal["value", "key"]
Subjects = Literal["topic", "record", "topic-record"]
_PARTS = ("value", "key")
_SUBJECTS = ("topic", "record", "topic-record")


class Frame(NamedTuple):
    """A record's schema, and its contents."""

    path: str
    """The path of the schema in the registry."""
    rest: bytes
    """The bytes after the id, at which Protobuf has the indexes of the message."""
    contents: bytes | None = None
    """The contents, if the id was in a header; otherwise they follow the id."""


class Codec(ABC):
    """Decodes and encodes values of one format. `Avro`, `Protobuf` and `Json` are such codecs."""

    _kind: str

    def __init__(
        self, registry: SchemaRegistry, *, subjects: Subjects, auto_register: bool
    ) -> None:
        if not isinstance(cast("object", registry), SchemaRegistry):
            raise checks.bad("registry", registry, "must be a SchemaRegistry(url)")
        self._registry = registry.client
        self._subjects = checks.choice("subjects", subjects, _SUBJECTS)
        self._auto_register = checks.flag("auto_register", auto_register)

    # -- reading -------------------------------------------------------------------------------------

    def decode(self, data: bytes | None) -> Any:
        """Return the value of framed bytes; `None` for a tombstone. A function for
        `decode(codec.decode)`, and for the value or key of any record.

        Does not suspend. Raises `DecodeError` for bytes that are not what the schema says,
        `PermanentError` for an id that the registry does not know, and the error that lets steps,
        handlers, transforms and sinks load a schema first; other code in an event loop needs
        `registry.call`. In a thread without a loop it blocks until the schema is loaded, and raises
        `UnavailableError` or `RefusedError` if that fails.
        """
        return None if data is None else self._of_frame(_framed(data))

    def value(self, message: Message) -> Any:
        """Return the decoded value of a message, whether the schema's id is in the value or in a
        header. A transform of a pipe as it is, or a part of one. Raises as `decode`.
        """
        return self._of_message(message, message.record.value, "__value_schema_id")

    def key(self, message: Message) -> Any:
        """Return the decoded key of a message. Raises as `decode`."""
        return self._of_message(message, message.record.key, "__key_schema_id")

    def step(self, message: Message) -> None:
        """Replace the value of a message by its decoded value: a step, for values whose schema is
        named in a header; `decode(codec.decode)` is enough for others. Raises as `decode`.
        """
        message.decoded(self.value(message))

    def _of_message(self, message: Message, data: Any, header: str) -> Any:
        if data is None:
            return None
        for name, given in message.headers:
            if name == header and cast("object", given) is not None:
                return self._of_frame(_framed(given)._replace(contents=data))
        return self._of_frame(_framed(data))

    def _of_frame(self, frame: Frame) -> Any:
        try:
            return self._read(frame)
        except SinkError:  # of loading
            raise
        except Exception as error:  # of a decoder, which may quote the value
            name = type(error).__name__
            raise DecodeError(f"not {self._kind} of the schema {frame.path} ({name})") from error

    @abstractmethod
    def _read(self, frame: Frame) -> Any:
        """Decode the contents of a frame. May raise anything."""

    # -- writing -------------------------------------------------------------------------------------

    def encoder(
        self,
        topic: str | Callable[[Any], str],
        *,
        part: Part = "value",
        of: str | Callable[[Any], Any] | None = None,
    ) -> Callable[[Any], bytes | None]:
        """Return a function from an item to bytes with the schema's id: `value=` or `key=` of
        `KafkaSink`.

        Args:
            topic: the topic, or a function from an item to it, as that of the sink; the subject
                follows from it. Only in a subject by record name it has no part.
            part: `"value"` or `"key"`.
            of: the field that contains the value to encode, or a function from an item to it.
                Default: the item itself. `None` becomes a tombstone.

        The function raises an exception for a value that does not fit the schema, by which its item
        alone fails. If the registry is down or refuses, the write fails as in an outage. Raises
        `ConfigError` for a bad argument.
        """
        checks.choice("part", part, _PARTS)
        if not callable(topic):
            checks.text("topic", topic)
        return partial(self._encode, topic, part, getter("of", of))

    def _encode(
        self,
        topic: str | Callable[[Any], str],
        part: str,
        of: Callable[[Any], Any] | None,
        item: Any,
    ) -> bytes | None:
        value = item if of is None else of(item)
        if value is None:
            return None
        if self._subjects == "record":
            subject = self._record_name()
        else:
            subject = topic(item) if callable(topic) else topic
            subject += f"-{part}" if self._subjects == "topic" else f"-{self._record_name()}"
        return self._write(subject, value)

    def _latest_id(self, subject: str) -> int:
        load = partial(self._registry.latest_id, subject, self._kind)
        return cast("int", self._registry.known(("latest", subject), load, keeps=False))

    def _id_of(self, subject: str, schema: Schema) -> int:
        load = partial(self._registry.id_of, subject, schema, registers=self._auto_register)
        return cast("int", self._registry.known((subject, schema.text), load))

    @abstractmethod
    def _record_name(self) -> str:
        """The full name of the record."""

    @abstractmethod
    def _write(self, subject: str, value: Any) -> bytes:
        """Encode a value. May raise anything."""


def framed(schema_id: int, contents: bytes) -> bytes:
    """The bytes of a record."""
    return b"\0" + schema_id.to_bytes(4, "big") + contents


def _framed(data: bytes) -> Frame:
    kind = data[:1]
    if kind == b"\0" and len(data) >= 5:
        return Frame(f"/schemas/ids/{int.from_bytes(data[1:5])}", data[5:])
    if kind == b"\1" and len(data) >= 17:
        return Frame(f"/schemas/guids/{UUID(bytes=data[1:17])}", data[17:])
    raise DecodeError("the bytes do not begin with the id of a schema")
