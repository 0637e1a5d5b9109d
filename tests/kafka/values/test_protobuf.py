"""Protobuf values: with a class of your own, and as rows."""

from __future__ import annotations

import base64
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from google.protobuf import (
    descriptor_pb2,
    descriptor_pool,
    duration_pb2,
    message_factory,
    struct_pb2,
    timestamp_pb2,
    wrappers_pb2,
)
from hypothesis import given
from hypothesis import strategies as st
from tests.kafka.source.storm_help import run
from tests.kafka.values.scripted_registry import scripted_registry

from sluicegate import ConfigError
from sluicegate.consumer import DecodeError
from sluicegate.kafka import Protobuf, SchemaRegistry, message_to_row

OF_GOOGLE: tuple[Any, ...] = (duration_pb2, struct_pb2, timestamp_pb2, wrappers_pb2)


def _field(message: Any, name: str, kind: int, *, type_name: str = "", **more: Any) -> None:
    number = len(message.field) + 1
    given = {"type_name": type_name} if type_name else {}
    message.field.add(name=name, number=number, type=kind, **{"label": 1, **given, **more})


def files() -> tuple[Any, Any]:
    """`shop.proto`, which imports `parts.proto`."""
    parts = descriptor_pb2.FileDescriptorProto(name="parts.proto", package="shop", syntax="proto3")
    part: Any = parts.message_type.add(name="Part")
    _field(part, "sku", 9)
    shop: Any = descriptor_pb2.FileDescriptorProto(
        name="shop.proto",
        package="shop",
        syntax="proto3",
        dependency=["parts.proto", *(each.DESCRIPTOR.name for each in OF_GOOGLE)],
    )
    shop.message_type.add(name="Other")
    order: Any = shop.message_type.add(name="Order")
    state = order.enum_type.add(name="State")
    state.value.add(name="NEW", number=0)
    state.value.add(name="PAID", number=1)
    entry = order.nested_type.add(name="CountsEntry")
    entry.options.map_entry = True
    _field(entry, "key", 9)
    _field(entry, "value", 3)
    line = order.nested_type.add(name="Line")
    _field(line, "count", 5)
    order.oneof_decl.add(name="_note")
    _field(order, "id", 3)
    _field(order, "data", 12)
    _field(order, "state", 14, type_name=".shop.Order.State")
    _field(order, "placed", 11, type_name=".google.protobuf.Timestamp")
    _field(order, "took", 11, type_name=".google.protobuf.Duration")
    _field(order, "limit", 11, type_name=".google.protobuf.Int64Value")
    _field(order, "extra", 11, type_name=".google.protobuf.Struct")
    _field(order, "parts", 11, type_name=".shop.Part", label=3)
    _field(order, "counts", 11, type_name=".shop.Order.CountsEntry", label=3)
    _field(order, "line", 11, type_name=".shop.Order.Line")
    _field(order, "note", 9, proto3_optional=True, oneof_index=0)
    return parts, shop


PARTS, SHOP = files()
POOL = descriptor_pool.DescriptorPool()
for _each in OF_GOOGLE:
    POOL.AddSerializedFile(_each.DESCRIPTOR.serialized_pb)
POOL.Add(PARTS)
POOL.Add(SHOP)
ORDER: Any = message_factory.GetMessageClass(POOL.FindMessageTypeByName("shop.Order"))
LINE: Any = message_factory.GetMessageClass(POOL.FindMessageTypeByName("shop.Order.Line"))
OTHER: Any = message_factory.GetMessageClass(POOL.FindMessageTypeByName("shop.Other"))
PART: Any = message_factory.GetMessageClass(POOL.FindMessageTypeByName("shop.Part"))
ROW = {
    "id": 2**60 + 1,
    "data": b"\xff",
    "state": "PAID",
    "placed": datetime(2023, 11, 14, 22, 13, 20, 123_456, UTC),
    "took": timedelta(seconds=1, microseconds=5),
    "limit": 0,
    "extra": {"a": [1.5, None, {"b": True}], "c": "x"},
    "parts": [{"sku": "a"}, {"sku": "b"}],
    "counts": {"red": 2**40},
    "line": {"count": -3},
    "note": "",
}
EMPTY = {
    "id": 0,
    "data": b"",
    "state": "NEW",
    "placed": None,
    "took": None,
    "limit": None,
    "extra": None,
    "parts": [],
    "counts": {},
    "line": None,
    "note": None,
}


def order() -> Any:
    made = ORDER(
        id=ROW["id"], data=b"\xff", state=1, line=LINE(count=-3), note="", counts={"red": 2**40}
    )
    made.placed.FromDatetime(ROW["placed"])
    made.took.FromTimedelta(ROW["took"])
    made.limit.value = 0
    made.extra.update({"a": [1.5, None, {"b": True}], "c": "x"})
    made.parts.extend([PART(sku="a"), PART(sku="b")])
    return made


def text(file: Any) -> str:
    return base64.b64encode(file.SerializeToString()).decode()


def test_a_row_has_the_values_of_python() -> None:
    """Integers of 64 bits are no strings, and what is not set is `None` where that is known."""
    assert message_to_row(order()) == ROW
    assert message_to_row(ORDER()) == EMPTY
    assert message_to_row(ORDER.FromString(b"\x18\x07"))["state"] == 7


def test_the_indexes_in_the_frame_name_the_message() -> None:
    """Of nested messages, too; a decoder of another class ignores them, and cut ones are poison."""

    async def scenario() -> None:
        async with scripted_registry() as there:
            registry = SchemaRegistry(there.url)
            there.answers["/subjects/t-value/versions/latest"] = (
                200,
                {"id": 7, "schemaType": "PROTOBUF"},
            )
            for kind, value, indexes in [
                (ORDER, order(), b"\2\2"),
                (LINE, LINE(count=5), b"\4\2\2"),
                (OTHER, OTHER(), b"\0"),
            ]:
                codec = Protobuf(registry, kind)
                data = await registry.call(codec.encoder("t"), value)
                assert data == b"\0\0\0\0\7" + indexes + value.SerializeToString()
                assert codec.decode(data) == value
            encode = Protobuf(registry, ORDER).encoder("t")
            assert encode({"id": 5}) == encode(ORDER(id=5))
            for bad in (b"\2\1", b"\2", b"\2\2\xff"):
                with pytest.raises(DecodeError):
                    Protobuf(registry, ORDER).decode(b"\0\0\0\0\7" + bad)

    run(scenario())


@given(
    st.integers(-(2**63), 2**63 - 1),
    st.binary(),
    st.dictionaries(st.text(), st.integers(-(2**63), 2**63 - 1)),
    st.none() | st.text(),
)
def test_what_is_encoded_is_decoded(number: int, data: bytes, counts: Any, note: Any) -> None:
    registry = SchemaRegistry("http://registry")
    value = ORDER(id=number, data=data, counts=counts, note=note)
    found = Protobuf(registry, ORDER).decode(b"\0\0\0\0\7\2\2" + value.SerializeToString())
    assert found == value
    row = message_to_row(found)
    assert (row["id"], row["data"], row["counts"], row["note"]) == (number, data, counts, note)


def test_a_message_without_a_required_field_is_poison() -> None:
    """Of the second version of Protobuf, whose parser accepts it."""
    file: Any = descriptor_pb2.FileDescriptorProto(name="old.proto", syntax="proto2")
    kind = file.message_type.add(name="Old")
    _field(kind, "needed", 5, label=2)
    _field(kind, "other", 5, default_value="7")
    pool: Any = descriptor_pool.DescriptorPool()
    pool.Add(file)
    old: Any = message_factory.GetMessageClass(pool.FindMessageTypeByName("Old"))
    decode = Protobuf(SchemaRegistry("http://registry"), old).decode
    assert message_to_row(decode(b"\0\0\0\0\7\0\x08\1")) == {"needed": 1, "other": None}
    with pytest.raises(DecodeError):
        decode(b"\0\0\0\0\7\0\x10\1")


def test_arguments_are_checked() -> None:
    registry = SchemaRegistry("http://registry")
    with pytest.raises(ConfigError, match="message="):
        Protobuf(registry, int)
    with pytest.raises(ConfigError, match=r"imports parts\.proto"):
        Protobuf(registry, ORDER, auto_register=True)
