"""Avro values: what they become, between which schemas, and which bytes are poison."""

from __future__ import annotations

import base64
import io
import json
import pickle
import uuid
from datetime import UTC, date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Any

import fastavro
import httpx
import pytest
from fastavro.validation import ValidationError
from hypothesis import given
from hypothesis import strategies as st
from tests.kafka.source.storm_help import run
from tests.kafka.values.scripted_registry import ScriptedRegistry, scripted_registry

from sluicegate import ConfigError, Consumer, Message, PermanentError
from sluicegate.consumer import DecodeError, MemoryLog, MemorySource
from sluicegate.http import HttpAccess
from sluicegate.kafka import Avro, Json, SchemaRegistry

JAVA = Path(__file__).parent / "java"
ORDER = json.loads((JAVA / "order.avsc").read_text())
ITEM = {"type": "record", "name": "Item", "fields": [{"name": "n", "type": "int"}]}
GUID = uuid.UUID("89791762-2336-4186-9674-299b90a802e2")


def written(schema: Any, value: Any) -> bytes:
    contents = io.BytesIO()
    fastavro.schemaless_writer(contents, fastavro.parse_schema(schema), value)
    return contents.getvalue()


def framed(schema: Any, value: Any, schema_id: int = 1) -> bytes:
    return b"\0" + schema_id.to_bytes(4, "big") + written(schema, value)


def decoded(data: bytes, *schemas: Any, reader: Any = None) -> Any:
    """Decode with a registry that has these schemas, from id 1."""

    async def scenario() -> Any:
        async with scripted_registry() as there:
            for number, schema in enumerate(schemas, 1):
                there.has(number, schema)
            registry = SchemaRegistry(there.url)
            avro = Avro(registry, reader)
            first = await registry.call(avro.decode, data)
            assert repr(avro.decode(data)) == repr(first)  # now without suspending
            assert len(there.requests) == 1
            return first

    return run(scenario())


def test_records_of_a_java_producer_are_python_values() -> None:
    """Their bytes were made by a Java serializer, with java/JavaRecords.java."""
    records = (JAVA / "records.txt").read_text().split()
    values = [decoded(base64.b64decode(record), ORDER) for record in records]
    assert [value["id"] for value in values] == [7_000_000_000, 7_000_000_001, 7_000_000_002]
    assert values[0] == {
        "id": 7_000_000_000,
        "customer": "Zoë 0",
        "amount": Decimal("-12.30"),
        "placed": datetime(2023, 11, 14, 22, 13, 20, 123_456, UTC),
        "seen": datetime(2023, 11, 14, 22, 13, 20, 123_000, UTC),
        "local": datetime(2023, 11, 14, 22, 13, 20, 123_000),
        "day": date(2023, 11, 14),
        "at": time(12, 34, 56, 789_000),
        "token": uuid.UUID("6ba7b810-9dad-11d1-80b4-00c04fd430c8"),
        "state": "PAID",
        "digest": b"\1\2\3\xff",
        "note": None,
        "items": [{"sku": "a", "count": -1}],
        "labels": {"red": 1.5},
    }
    assert values[2]["note"] == "note 2"


LEAVES: dict[Any, st.SearchStrategy[Any]] = {
    "null": st.none(),
    "boolean": st.booleans(),
    "int": st.integers(-(2**31), 2**31 - 1),
    "long": st.integers(-(2**63), 2**63 - 1),
    "double": st.floats(allow_nan=False),
    "bytes": st.binary(max_size=8),
    "string": st.text(max_size=8),
    '{"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}': st.decimals(
        -1_000_000, 1_000_000, places=2
    ),
    '{"type": "long", "logicalType": "timestamp-micros"}': st.datetimes(
        datetime(1800, 1, 1), datetime(2200, 1, 1), timezones=st.just(UTC)
    ),
    '{"type": "long", "logicalType": "local-timestamp-micros"}': st.datetimes(
        datetime(1800, 1, 1), datetime(2200, 1, 1)
    ),
    '{"type": "int", "logicalType": "date"}': st.dates(),
    '{"type": "string", "logicalType": "uuid"}': st.uuids(),
}


@st.composite
def schemas(draw: st.DrawFn, depth: int = 2) -> tuple[Any, st.SearchStrategy[Any]]:
    """A schema, and its values."""
    kind = draw(st.sampled_from(["leaf", "array", "map", "record", "maybe"] if depth else ["leaf"]))
    if kind == "leaf":
        text = draw(st.sampled_from([*LEAVES]))
        return json.loads(text) if text.startswith("{") else text, LEAVES[text]
    inner, values = draw(schemas(depth=depth - 1))
    if kind == "array" and inner != "null":
        return {"type": "array", "items": inner}, st.lists(values, max_size=3)
    if kind == "map":
        return {"type": "map", "values": inner}, st.dictionaries(st.text(), values, max_size=3)
    if kind == "maybe" and inner != "null" and not isinstance(inner, list):
        return ["null", inner], st.none() | values
    name = f"R{depth}"
    fields = [{"name": "f", "type": inner}, {"name": "g", "type": "int", "default": 4}]
    record = {"type": "record", "name": name, "fields": fields}
    return record, st.fixed_dictionaries({"f": values, "g": LEAVES["int"]})


@given(schemas().flatmap(lambda each: st.tuples(st.just(each[0]), each[1])))
def test_what_is_encoded_is_decoded_and_fastavro_agrees(case: tuple[Any, Any]) -> None:
    schema, value = case

    def answer(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, json={"id": 1, "schema": json.dumps(schema)})

    async def scenario() -> None:
        transport = httpx.MockTransport(answer)
        access = HttpAccess("http://r", client=lambda: httpx.AsyncClient(transport=transport))
        registry = SchemaRegistry(access)
        data = await registry.call(Avro(registry, json.dumps(schema)).encoder("t"), value)
        if value is None:
            assert data is None
            return
        assert data == framed(schema, value)
        assert await registry.call(Avro(registry).decode, data) == value

    run(scenario())


def changed(*fields: dict[str, Any]) -> dict[str, Any]:
    return {"type": "record", "name": "Item", "fields": [*fields]}


@pytest.mark.parametrize(
    ("reader", "value"),
    [
        (changed({"name": "n", "type": "long"}), {"n": 7}),
        (changed({"name": "n", "type": "double"}), {"n": 7.0}),
        (changed({"name": "m", "type": "int", "aliases": ["n"]}), {"m": 7}),
        (
            changed({"name": "n", "type": "int"}, {"name": "m", "type": "string", "default": "x"}),
            {"n": 7, "m": "x"},
        ),
        (changed({"name": "m", "type": "int", "default": 1}), {"m": 1}),
        (changed({"name": "n", "type": ["null", "int"]}), {"n": 7}),
    ],
    ids=["int-to-long", "int-to-double", "alias", "new-field", "dropped-field", "int-to-union"],
)
def test_the_readers_schema_is_one_to_which_the_writers_may_evolve(reader: Any, value: Any) -> None:
    assert decoded(framed(ITEM, {"n": 7}), ITEM, reader=reader) == value


@pytest.mark.parametrize(
    "reader",
    [
        changed({"name": "n", "type": "string"}),
        changed({"name": "n", "type": "int"}, {"name": "m", "type": "string"}),
        '"long"',
    ],
    ids=["int-to-string", "without-default", "another-type"],
)
def test_a_schema_that_does_not_fit_makes_a_record_poison(reader: Any) -> None:
    with pytest.raises(DecodeError) as refused:
        decoded(framed(ITEM, {"n": 7}), ITEM, reader=reader)
    assert isinstance(refused.value, PermanentError)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{}",
        b"\0\0\0\0",
        b"\0\0\0\0\1",
        framed(ITEM, {"n": 300})[:-1],
        framed(ITEM, {"n": 7}) + b"x",
        b"\0\0\0\0\1" + b"\xff" * 20,
    ],
)
def test_bytes_that_do_not_fit_are_poison_and_are_not_quoted(data: bytes) -> None:
    with pytest.raises(DecodeError) as refused:
        decoded(data, ITEM)
    assert "xff" not in str(refused.value)


NODE = {"type": "record", "name": "Node", "namespace": "n", "fields": [
    {"name": "next", "type": ["null", "Node"]},
    {"name": "more", "type": {"type": "map", "values": "n.Node"}, "default": {}},
]}  # fmt: skip


def test_deeply_nested_bytes_are_poison_and_do_not_crash_the_process() -> None:
    """The compiled reader of fastavro ends the process, without an exception."""
    value = {"next": {"next": None, "more": {}}, "more": {"a": {"next": None, "more": {}}}}
    assert decoded(framed(NODE, value), NODE) == value
    for schema in (NODE, ["null", NODE], {"type": "array", "items": NODE}):
        with pytest.raises(DecodeError, match="RecursionError"):
            decoded(b"\0\0\0\0\1" + b"\2" * 100_000, schema)


EMPTY = {"type": "record", "name": "Empty", "fields": [{"name": "a", "type": "null"}]}


@pytest.mark.parametrize("items", ["null", {"type": "null"}, EMPTY, {**EMPTY, "fields": []}])
def test_a_short_record_with_any_number_of_items_is_poison(items: Any) -> None:
    """50,000,000 nulls in ten bytes would take seconds of the event loop, and memory."""
    count = b"\x80\xe1\xeb\x17"
    for schema in (
        {"type": "array", "items": items},
        {"type": "map", "values": {"type": "array", "items": items}},
    ):
        with pytest.raises(PermanentError, match="take no bytes"):
            decoded(b"\0\0\0\0\1" + count + b"\0", schema)
    fine = {"type": "array", "items": ["null", "int"]}
    assert decoded(framed(fine, [None]), fine) == [None]


def test_references_are_known_by_their_names_also_in_a_union() -> None:
    outer = {
        "type": "record",
        "name": "Outer",
        "fields": [{"name": "i", "type": "Item"}, {"name": "o", "type": ["null", "Outer"]}],
    }
    value = {"i": {"n": 7}, "o": None}
    inline = {**outer, "fields": [{"name": "i", "type": ITEM}, outer["fields"][1]]}

    async def scenario() -> None:
        async with scripted_registry() as there:
            to_item = {"name": "Item", "subject": "item", "version": 3}
            to_outer = {"name": "Outer", "subject": "out/er", "version": 1}
            there.answers["/subjects/item/versions/3"] = 200, {"schema": json.dumps(ITEM)}
            there.answers["/subjects/out%2Fer/versions/1"] = (
                200,
                {"schema": json.dumps(outer), "references": [to_item]},
            )
            there.has(1, outer, references=[to_item])
            there.has(2, ["Item", "Outer"], references=[to_item, to_outer])
            registry = SchemaRegistry(there.url)
            decode = Avro(registry).decode
            assert await registry.call(decode, framed(inline, value)) == value
            one = b"\0\0\0\0\2\2" + written(inline, value)
            assert await registry.call(decode, one) == value

    run(scenario())


def test_the_id_may_be_in_a_header() -> None:
    """As a GUID or as a number, for the value and for the key."""

    async def scenario() -> None:
        async with scripted_registry() as there:
            there.has(1, ITEM)
            there.answers[f"/schemas/guids/{GUID}"] = there.answers["/schemas/ids/1"]
            registry = SchemaRegistry(there.url)
            avro, log = Avro(registry), MemoryLog()
            ids = [("__value_schema_id", b"\1" + GUID.bytes), ("__key_schema_id", b"\0\0\0\0\1")]
            value, key = written(ITEM, {"n": 7}), written(ITEM, {"n": 8})
            log.produce("t", value, key=key, headers=ids)
            log.produce("t", b"\1" + GUID.bytes + value, key=b"\0\0\0\0\1" + key)
            log.produce("t", None)
            seen: list[Any] = []

            async def see(message: Message) -> None:
                seen.append((message.value, await registry.call(avro.key, message)))

            await Consumer(MemorySource(log, ends=True), steps=[avro.step]).run(see)
            assert (None, None) in seen
            assert seen.count(({"n": 7}, {"n": 8})) == 2

    run(scenario())


@pytest.mark.parametrize("value", [{"n": "7"}, {}, {"n": 7, "m": 1}, {"n": 2**40}, 7])
def test_a_value_that_does_not_fit_the_schema_is_not_encoded(value: Any) -> None:
    """Also with a field that the schema does not have, which would be lost."""

    async def scenario() -> None:
        async with scripted_registry() as there:
            there.answers["/subjects/t-value"] = 200, {"id": 1}
            registry = SchemaRegistry(there.url)
            with pytest.raises((ValidationError, ValueError)):
                await registry.call(Avro(registry, ITEM).encoder("t"), value)

    run(scenario())


@pytest.mark.parametrize(
    ("subjects", "part", "subject"),
    [
        ("topic", "value", "orders-value"),
        ("topic", "key", "orders-key"),
        ("record", "value", "shop.Order"),
        ("topic-record", "value", "orders-shop.Order"),
    ],
)
def test_the_subject_follows_from_topic_and_record(subjects: Any, part: Any, subject: str) -> None:
    schema = {"type": "record", "name": "Order", "namespace": "shop", "fields": []}

    async def scenario() -> ScriptedRegistry:
        async with scripted_registry() as there:
            there.answers[f"/subjects/{subject}"] = 200, {"id": 258}
            registry = SchemaRegistry(there.url)
            avro = Avro(registry, schema, subjects=subjects)
            encode = avro.encoder(lambda item: "orders", part=part, of="order")
            assert await registry.call(encode, {"order": {}}) == b"\0\0\0\1\2"
            assert encode({"order": None}) is None
            return there

    assert run(scenario()).requests == [f"POST /subjects/{subject}?normalize=true"]


def test_json_has_the_same_frame() -> None:
    async def scenario() -> None:
        async with scripted_registry() as there:
            there.answers["/subjects/t-value/versions/latest"] = (
                200,
                {"id": 9, "schema": "{}", "schemaType": "JSON"},
            )
            registry = SchemaRegistry(there.url)
            data = await registry.call(Json(registry).encoder("t"), {"n": Decimal("1.5")})
            assert data == b'\0\0\0\0\x09{"n":"1.5"}'
            assert Json(registry).decode(data) == {"n": "1.5"}
            with pytest.raises(DecodeError):
                Json(registry).decode(data[:-1])

    run(scenario())


def test_codecs_are_pickled_without_what_they_know() -> None:
    registry = SchemaRegistry("http://ann:secret@registry:8081")
    avro = pickle.loads(pickle.dumps(Avro(registry, ITEM).encoder("t")))
    assert avro.func.__self__._schema == Avro(registry, ITEM)._schema
    assert "secret" not in repr(registry)


@pytest.mark.parametrize(
    "make",
    [
        lambda registry: Avro("http://registry"),  # type: ignore[arg-type]  # deliberately
        lambda registry: Avro(registry, {"type": "recor"}),
        lambda registry: Avro(registry, "{"),
        lambda registry: Avro(registry, subjects="record"),
        lambda registry: Avro(registry, '"int"', subjects="record"),
        lambda registry: Avro(registry, auto_register=True),
        lambda registry: Avro(registry, ITEM, subjects="topics"),  # type: ignore[arg-type]  # deliberately
        lambda registry: Avro(registry).encoder(""),
        lambda registry: Avro(registry).encoder("t", part="values"),  # type: ignore[arg-type]  # deliberately
        lambda registry: Json(registry, [1]),  # type: ignore[arg-type]  # deliberately
        lambda registry: Json(registry, {}, subjects="record"),
        lambda registry: SchemaRegistry("registry:8081"),
        lambda registry: SchemaRegistry("http://registry", timeout=0),
    ],
)
def test_bad_arguments_are_refused(make: Any) -> None:
    with pytest.raises(ConfigError):
        make(SchemaRegistry("http://registry:8081"))
