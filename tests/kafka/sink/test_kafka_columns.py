"""Which columns can be which parts of records, and when the rows of a key would be scattered. White
box: what a sink tells Spark about columns.
"""

from __future__ import annotations

import pickle
import ssl
from datetime import UTC, datetime
from typing import Any

import pytest

pytest.importorskip("aiokafka")
pytest.importorskip("pyarrow")
import pyarrow as pa

from sluicegate import ConfigError, DeadLetter, FanOut, Retry, Timeout, stack
from sluicegate._core.tls import TlsFiles
from sluicegate.kafka import KafkaSink
from sluicegate.kafka.sink.records import Columns, RecordMaker, part
from sluicegate.sinks import MemorySink
from sluicegate.spark.destination import scattered_by

PAIR = pa.struct([("key", pa.string()), ("value", pa.binary())])
MOMENT = pa.timestamp("us", "UTC")


def sink(**given: Any) -> KafkaSink:
    return KafkaSink("orders", bootstrap="host:9092", **given)


@pytest.mark.parametrize(
    ("name", "kinds"),
    [
        ("value", [pa.binary(), pa.string(), pa.large_string(), pa.null()]),
        ("key", [pa.binary(), pa.int64(), pa.decimal128(9, 2), MOMENT, pa.struct([("a", MOMENT)])]),
        ("headers", [pa.list_(PAIR), pa.map_(pa.string(), pa.binary())]),
        ("timestamp", [MOMENT, pa.int64()]),
        ("partition", [pa.int32(), pa.int64()]),
    ],
)
def test_types_that_fit(name: str, kinds: list[Any]) -> None:
    value = {} if name == "value" else {"value": "v"}
    for kind in kinds:
        schema = pa.schema([("x", kind), ("v", pa.string())])
        assert sink(**{name: "x", **value}).refused_columns(schema) == {}, kind


@pytest.mark.parametrize(
    ("name", "kind", "why"),
    [
        ("value", pa.int64(), "a value must be bytes or text; write to_json"),
        ("value", PAIR, "a value must be bytes or text; write to_json"),
        ("key", PAIR, "it has bytes, which JSON cannot represent"),
        ("headers", pa.string(), "headers must be ARRAY<STRUCT<key: STRING, value: BINARY>>"),
        ("headers", pa.list_(pa.string()), "headers must be ARRAY"),
        ("headers", pa.map_(pa.string(), pa.int32()), "headers must be ARRAY"),
        ("timestamp", pa.timestamp("us"), "a timestamp must have a time zone"),
        ("partition", pa.string(), "a partition must be a number"),
    ],
)
def test_types_that_do_not_fit(name: str, kind: Any, why: str) -> None:
    schema = pa.schema([("x", kind), ("v", pa.string())])
    found = sink(**{"value": "v", name: "x"}).refused_columns(schema)
    assert list(found) == ["x"]
    assert why in found["x"]


def test_columns_that_are_missing_and_topics() -> None:
    by_column = KafkaSink(bootstrap="host:9092", topic_field="t", key="k")
    schema = pa.schema([("t", pa.int32())])
    assert list(by_column.refused_columns(schema)) == ["t", "k"]


@pytest.mark.parametrize(
    "given",
    [
        {"a": b"1", "b": None},
        [("a", b"1"), ("b", None)],
        [{"key": "a", "value": b"1"}, {"key": "b", "value": None}],
    ],
)
def test_headers_of_every_form(given: Any) -> None:
    assert columns({"h": given, "v": "x"}, value="v", headers="h").headers == [
        [("a", b"1"), ("b", None)]
    ]


def columns(item: Any, **fields: str) -> Columns:
    names = ("key", "value", "headers", "timestamp", "topic", "partition")
    return RecordMaker(**{name: part(name, fields.get(name)) for name in names}).columns(
        [item], None
    )


def test_parts_by_fields() -> None:
    item = {"k": 7, "v": "text", "t": datetime(2026, 1, 1, tzinfo=UTC), "n": 2, "to": "there"}
    found = columns(item, key="k", value="v", timestamp="t", partition="n", topic="to")
    assert (found.keys, found.values, found.timestamps) == ([b"7"], [b"text"], [1767225600000])
    assert (found.partitions, found.topics, found.errors) == ([2], ["there"], {})


def test_a_topic_is_given_once() -> None:
    twice: dict[str, Any] = {"topic": "a", "topic_field": "b"}
    for given in ({}, twice):
        with pytest.raises(ConfigError, match="topic_field"):
            KafkaSink(bootstrap="host:9092", **given)


def test_keys_are_scattered_without_a_key() -> None:
    scattered = "chooses a partition for each write"
    assert scattered in str(scattered_by(stack(sink(), Timeout(1.0), Retry())))
    assert scattered in str(scattered_by(FanOut(MemorySink(), sink())))
    keeping: list[Any] = [sink(key="k"), sink(partition="p")]
    for keeps in (*keeping, stack(MemorySink(), DeadLetter(sink()))):
        assert scattered_by(keeps) is None


def test_files_of_tls_travel_and_hide_the_password() -> None:
    files = TlsFiles(cafile="no-such-file.pem", password="h1dden")
    assert repr(pickle.loads(pickle.dumps(files))) == "ssl_context(cafile='no-such-file.pem')"
    assert isinstance(TlsFiles()(), ssl.SSLContext)
    with pytest.raises(ConfigError, match=r"no-such-file\.pem") as missing:
        files()
    assert "h1dden" not in str(missing.value)
