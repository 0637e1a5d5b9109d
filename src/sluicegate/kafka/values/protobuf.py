"""Protobuf, with Google's package."""

from __future__ import annotations

import base64
from datetime import UTC
from typing import TYPE_CHECKING, Any

from ..._core import checks
from ..._core.extras import missing
from .codec import Codec, Frame, Subjects, framed
from .registry import Schema

if TYPE_CHECKING:
    from .registry import SchemaRegistry


class Protobuf(Codec):
    """Records in Protobuf whose schemas are in a registry. `message_to_row` turns one into a
    dictionary.

    Args:
        registry: where the schemas are.
        message: the class of the messages, made by `protoc`. Decoding asks the registry for nothing,
            and ignores which message of its file a record names.
        subjects: as in `Avro`; the record's name is the full name of the message.
        auto_register: whether to register the file of `message` where it is missing; default
            `False`: a record has the id of its subject's latest version. Only for a file that imports
            no other file but Google's.

    To encode, give messages, or mappings with the values of their fields. Raises `ConfigError` for a
    bad argument and `MissingExtra` without protobuf. Connects to nothing.
    """

    _kind = "PROTOBUF"

    def __init__(
        self,
        registry: SchemaRegistry,
        message: type[Any],
        *,
        subjects: Subjects = "topic",
        auto_register: bool = False,
    ) -> None:
        try:
            import google.protobuf  # noqa: F401  # pyright: ignore[reportUnusedImport]  # is it there?
        except ImportError:
            raise missing("google.protobuf", "protobuf", "Protobuf") from None
        super().__init__(registry, subjects=subjects, auto_register=auto_register)
        descriptor: Any = getattr(message, "DESCRIPTOR", None)
        if not hasattr(descriptor, "containing_type"):
            raise checks.bad("message", message, "must be a class of messages, made by protoc")
        self._message = message
        self._indexes = _indexes(descriptor)
        self._schema = _schema(descriptor.file) if auto_register else None

    def _read(self, frame: Frame) -> Any:
        begin = _end_of_indexes(frame.rest)
        message = self._message.FromString(
            frame.rest[begin:] if frame.contents is None else frame.contents
        )
        if not message.IsInitialized():
            raise ValueError("a required field is missing")
        return message

    def _write(self, subject: str, value: Any) -> bytes:
        message = value if isinstance(value, self._message) else self._message(**value)
        if self._schema is None:
            schema_id = self._latest_id(subject)
        else:
            schema_id = self._id_of(subject, self._schema)
        return framed(schema_id, self._indexes + message.SerializeToString())

    def _record_name(self) -> str:
        return str(getattr(self._message, "DESCRIPTOR").full_name)  # noqa: B009  # protoc's name


def message_to_row(message: Any) -> dict[str, Any]:
    """Return the fields of a Protobuf message as a dictionary, such as a row of a table.

    Integers of 64 bits are integers, unlike in Protobuf's JSON; bytes are bytes; an enum is its name,
    or its number if that has none; messages, maps and lists are dictionaries and lists. A `Timestamp`
    is a `datetime` in UTC and a `Duration` a `timedelta`, both cut to microseconds; wrappers such as
    `Int64Value` are their values; `Struct`, `Value` and `ListValue` are dictionaries, values and lists.
    A field that is not set is `None` if the schema can tell, otherwise its default.

    Does not suspend. Raises `ValueError` or `OverflowError` for a time that Python cannot represent.
    """
    return {field.name: _field(message, field) for field in message.DESCRIPTOR.fields}


def _field(message: Any, field: Any) -> Any:
    if field.has_presence and not message.HasField(field.name):
        return None
    value = getattr(message, field.name)
    kind = field.message_type
    if kind is not None and kind.GetOptions().map_entry:
        of_value = kind.fields_by_name["value"]
        return {key: _value(value[key], of_value) for key in value}
    if field.is_repeated:
        return [_value(each, field) for each in value]
    return _value(value, field)


def _value(value: Any, field: Any) -> Any:
    if field.enum_type is not None:
        named = field.enum_type.values_by_number.get(value)
        return value if named is None else named.name
    return value if field.message_type is None else _of_message(value)


def _of_message(value: Any) -> Any:
    package, _, name = value.DESCRIPTOR.full_name.rpartition(".")
    if package != "google.protobuf":
        return message_to_row(value)
    if name == "Timestamp":
        return value.ToDatetime(tzinfo=UTC)
    if name == "Duration":
        return value.ToTimedelta()
    if name == "Struct":
        return {key: _of_message(value.fields[key]) for key in value.fields}
    if name == "ListValue":
        return [_of_message(each) for each in value.values]
    if name == "Value":
        which = value.WhichOneof("kind")
        found = getattr(value, which or "null_value")
        if which in {"struct_value", "list_value"}:
            return _of_message(found)
        return None if which in {None, "null_value"} else found
    if name.endswith("Value"):
        return value.value
    return message_to_row(value)


# -- indexes of messages -----------------------------------------------------------------------------


def _indexes(descriptor: Any) -> bytes:
    """The path of a message in its file; the first message is a single 0."""
    path: list[int] = []
    while (outer := descriptor.containing_type) is not None:
        path.insert(0, [*outer.nested_types].index(descriptor))
        descriptor = outer
    path.insert(0, [*descriptor.file.message_types_by_name.values()].index(descriptor))
    return b"\0" if path == [0] else b"".join(map(_varint, (len(path), *path)))


def _varint(number: int) -> bytes:
    number <<= 1  # zigzag
    made = bytearray()
    while number > 0x7F:
        made.append(number & 0x7F | 0x80)
        number >>= 7
    made.append(number)
    return bytes(made)


def _end_of_indexes(data: bytes) -> int:
    """Where the path of a message ends. Raises `IndexError` for cut data."""
    count, at = _read_varint(data, 0)
    for _ in range(min(count, len(data))):
        _, at = _read_varint(data, at)
    return at


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        byte = data[at]
        at += 1
        number |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            if number & 1 or shift > 35:
                raise ValueError("not the index of a message")
            return number >> 1, at


# -- schemas -----------------------------------------------------------------------------------------


def _schema(file: Any) -> Schema:
    from google.protobuf import descriptor_pb2

    foreign = [e.name for e in file.dependencies if not e.name.startswith("google/protobuf/")]
    if foreign:
        rule = f"cannot register a file that imports {foreign[0]}; register it by other means"
        raise checks.bad("auto_register", True, rule)
    made: Any = descriptor_pb2.FileDescriptorProto()
    file.CopyToProto(made)
    return Schema("PROTOBUF", base64.b64encode(made.SerializeToString()).decode())
