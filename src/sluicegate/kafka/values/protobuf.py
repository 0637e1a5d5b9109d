"""Protobuf, with Google's package."""

from __future__ import annotations

import base64
from datetime import UTC
from functools import partial
from typing import TYPE_CHECKING, Any

from ..._core import checks
from ..._core.errors import PermanentError, RefusedError
from ..._core.extras import missing
from .codec import Codec, Frame, Subjects, framed
from .registry import Schema

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from .registry import SchemaRegistry


class Protobuf(Codec):
    """Records in Protobuf whose schemas are in a registry. `message_to_row` turns one into a
    dictionary.

    Args:
        registry: where the schemas are.
        message: the class of the messages, made by `protoc`. Decoding then asks the registry for
            nothing, and ignores which message of its file a record names. Default: to decode, a class
            made from the registry's schema; the registry has to return it in binary form
            (`?format=serialized`), as Confluent's does. Encoding needs the class.
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
        message: type[Any] | None = None,
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
        if message is not None and not hasattr(descriptor, "containing_type"):
            raise checks.bad("message", message, "must be a class of messages, made by protoc")
        if message is None and (subjects != "topic" or auto_register):
            raise checks.bad(
                "message", None, "must be given for these subjects= and auto_register="
            )
        self._message = message
        self._indexes = b"" if descriptor is None else _indexes(descriptor)
        self._schema = _schema(descriptor.file) if descriptor and auto_register else None

    def _read(self, frame: Frame) -> Any:
        indexes, begin = _read_indexes(frame.rest)
        kind = self._message
        if kind is None:
            path = frame.path
            load = partial(self._load, path)
            kind = self._registry.known(("protobuf", path), load)(tuple(indexes))
        message = kind.FromString(frame.rest[begin:] if frame.contents is None else frame.contents)
        if not message.IsInitialized():
            raise ValueError("a required field is missing")
        return message

    def _write(self, subject: str, value: Any) -> bytes:
        if self._message is None:
            raise TypeError("Protobuf encodes only with the class of the messages")
        message = value if isinstance(value, self._message) else self._message(**value)
        if self._schema is None:
            schema_id = self._latest_id(subject)
        else:
            schema_id = self._id_of(subject, self._schema)
        return framed(schema_id, self._indexes + message.SerializeToString())

    def _record_name(self) -> str:
        return str(getattr(self._message, "DESCRIPTOR").full_name)  # noqa: B009  # protoc's name

    async def _load(self, path: str) -> Callable[[Sequence[int]], type[Any]]:
        schema = await self._registry.fetch(path, self._kind)
        try:
            file = base64.b64decode(schema.text, validate=True)
        except ValueError:
            told = f"{self._registry!r} returns the schema {path} only as text"
            repair = "give the class of the messages: Protobuf(registry, Message)"
            raise RefusedError(told, repair=repair) from None
        try:
            return _classes(file, schema)
        except Exception as error:
            told = f"the schema {path} of the registry cannot be read ({type(error).__name__})"
            raise PermanentError(told) from error


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


def _read_indexes(data: bytes) -> tuple[list[int], int]:
    """The path of a message, and where it ends. Raises `IndexError` for cut data."""
    count, at = _read_varint(data, 0)
    path: list[int] = []
    for _ in range(min(count, len(data))):
        index, at = _read_varint(data, at)
        path.append(index)
    return path or [0], at


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

    known = _of_google()
    if foreign := [each.name for each in file.dependencies if each.name not in known]:
        rule = f"cannot register a file that imports {foreign[0]}; register it by other means"
        raise checks.bad("auto_register", True, rule)
    made: Any = descriptor_pb2.FileDescriptorProto()
    file.CopyToProto(made)
    return Schema("PROTOBUF", base64.b64encode(made.SerializeToString()).decode())


def _classes(file: bytes, schema: Schema) -> Callable[[Sequence[int]], type[Any]]:
    """Return a function from the path of a message in a file to its class."""
    from google.protobuf import descriptor_pb2, descriptor_pool

    pool: Any = descriptor_pool.DescriptorPool()
    added: set[str] = set()
    known = _of_google()

    def add(name: str, content: bytes, schema: Schema | None) -> Any:
        made: Any = descriptor_pb2.FileDescriptorProto.FromString(content)
        own_name = descriptor_pb2.FileDescriptorProto(name=name or made.name or "schema.proto")
        made.MergeFrom(own_name)
        if made.name not in added:
            added.add(made.name)
            add_all(made.dependency, schema)
            pool.Add(made)
        return made.name

    def add_all(names: Iterable[str], schema: Schema | None) -> None:
        given = {} if schema is None else {each.name: each.schema for each in schema.references}
        for name in names:
            if name in known:
                add(name, known[name], None)
            else:
                add(name, base64.b64decode(given[name].text), given[name])

    found = pool.FindFileByName(add("", file, schema))
    return partial(_class_at, [*found.message_types_by_name.values()])


def _class_at(messages: list[Any], path: Sequence[int]) -> type[Any]:
    from google.protobuf import message_factory

    found: Any = messages[path[0]]
    for index in path[1:]:
        found = found.nested_types[index]
    made: type[Any] = message_factory.GetMessageClass(found)
    return made


def _of_google() -> dict[str, bytes]:
    """The files that a schema imports without a reference."""
    from google.protobuf import (
        any_pb2,
        duration_pb2,
        empty_pb2,
        field_mask_pb2,
        struct_pb2,
        timestamp_pb2,
        wrappers_pb2,
    )

    modules: tuple[Any, ...] = (any_pb2, duration_pb2, empty_pb2, field_mask_pb2, struct_pb2, timestamp_pb2, wrappers_pb2)  # fmt: skip
    return {each.DESCRIPTOR.name: each.DESCRIPTOR.serialized_pb for each in modules}
