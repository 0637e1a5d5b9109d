"""Messages to append: their valid values, and values refused before anything is sent.

White box: the statement of an append, and the channel.
"""

from __future__ import annotations

import asyncio
import dataclasses
import math
import pickle
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID, uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluicegate import ConfigError
from sluicegate.postgres import NewMessage, StreamLog
from sluicegate.postgres.streams.log import append_call, channel_of


def message(type: Any = "Happened", **others: Any) -> NewMessage:  # noqa: A002  # an argument's name
    return NewMessage(type, 1, **others)


class Plain:
    pass


def endless() -> list[Any]:
    made: list[Any] = []
    made.append(made)
    return made


def deep() -> Any:
    made: Any = 0
    for _ in range(100_000):
        made = [made]
    return made


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (math.nan, "float values are not JSON compliant"),
        ({"a": [math.inf]}, "float values are not JSON compliant"),
        (b"bytes", "bytes has no form in JSON"),
        ({"a": Plain()}, "Plain has no form in JSON"),
        ({(1, 2): 3}, "keys must be str"),
        ("a\0b", "holds U+0000"),
        ({"a\0b": 1}, "holds U+0000"),
        ("\\\0", "holds U+0000"),
        ("\ud800", "half of a surrogate pair"),
        (endless(), "Circular reference"),
        (deep(), "nested too deeply"),
    ],
    ids=lambda value: value if isinstance(value, str) and value.isascii() else "",
)
def test_contents_without_a_form_in_jsonb_are_refused(data: Any, why: str) -> None:
    with pytest.raises(ConfigError) as caught:
        NewMessage("Happened", data)
    assert str(caught.value).startswith(f"data={type(data).__name__!r}: ")
    assert why in str(caught.value)
    with pytest.raises(ConfigError, match=r"^metadata='dict': "):
        NewMessage("Happened", None, {"it": data})


@pytest.mark.parametrize("text", ["\\u0000", "\\\\u0000", '"\\u0000', "a\\"])
def test_text_that_only_looks_like_nul_is_taken(text: str) -> None:
    assert "u0000" in NewMessage("Happened", f"{text}u0000").data_text


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ({"type": ""}, "type=''"),
        ({"type": "a\0"}, "without U+0000"),
        ({"type": "\udc00"}, "surrogates"),
        ({"type": None}, "type=None"),
        ({"metadata": ["a"]}, "metadata='list': must be a mapping"),
        ({"id": "17"}, "id='17': must be a UUID or the text of one"),
        ({"id": 17}, "id=17: must be"),
    ],
)
def test_bad_arguments_are_named(arguments: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError) as caught:
        message(**arguments)
    assert why in str(caught.value)


def test_values_with_a_form_in_json_are_taken() -> None:
    @dataclasses.dataclass
    class Order:
        at: datetime
        price: Decimal
        id: UUID

    made = NewMessage(
        "Happened", Order(datetime(2026, 1, 2, tzinfo=UTC), Decimal("1.50"), UUID(int=1))
    )
    assert made.data_text == (
        '{"at":"2026-01-02T00:00:00+00:00","price":"1.50",'
        '"id":"00000000-0000-0000-0000-000000000001"}'
    )
    assert made.metadata_text == "{}"


def test_contents_are_encoded_when_the_message_is_made() -> None:
    data = {"n": 1}
    made = NewMessage("Happened", data)
    data["n"] = 2
    assert made.data_text == '{"n":1}'


def test_an_id_is_a_uuid_however_it_was_given() -> None:
    given_id = uuid4()
    assert NewMessage("Happened", 1, id=str(given_id)) == NewMessage("Happened", 1, id=given_id)
    assert pickle.loads(pickle.dumps(NewMessage("Happened", 1, id=given_id))).id == given_id


@pytest.mark.parametrize(
    ("stream", "messages", "expected", "why"),
    [
        ("", NewMessage("T", 1), None, "stream=''"),
        ("é" * 1001, NewMessage("T", 1), None, "at most 2000 bytes"),
        (7, NewMessage("T", 1), None, "stream=7"),
        ("s", [], None, "must be at least one NewMessage"),
        ("s", "text", None, "messages='str'"),
        ("s", 7, None, "messages='int'"),
        ("s", [{"type": "T"}], None, "messages='dict'"),
        ("s", NewMessage("T", 1), -2, "expected=-2"),
        ("s", NewMessage("T", 1), True, "expected=True"),
        ("s", NewMessage("T", 1), "0", "or None for any"),
        ("s", [NewMessage("T", n, id=UUID(int=1)) for n in range(2)], None, "two messages"),
    ],
)
def test_a_bad_call_is_refused_before_the_connection_is_used(
    stream: Any, messages: Any, expected: Any, why: str
) -> None:
    log = StreamLog()
    connection: Any = None
    with pytest.raises(ConfigError) as caught:
        asyncio.run(log.append(connection, stream, messages, expected=expected))
    assert why in str(caught.value)
    with pytest.raises(ConfigError) as caught:
        log.append_sync(connection, stream, messages, expected=expected)
    assert why in str(caught.value)


@pytest.mark.parametrize("schema", ["", 7, "a\0"])
def test_the_name_of_the_schema_is_checked(schema: Any) -> None:
    with pytest.raises(ConfigError, match="schema="):
        StreamLog(schema)


def test_a_log_is_shown_and_travels() -> None:
    assert repr(StreamLog()) == "StreamLog('sluicegate')"
    assert pickle.loads(pickle.dumps(StreamLog("mine"))).schema == "mine"


@given(st.text(min_size=1))
def test_every_schema_has_a_channel_that_postgresql_takes(schema: str) -> None:
    assert len(channel_of(schema).encode(errors="replace")) <= 63
    assert channel_of(schema) != channel_of(f"{schema}x")


def test_a_statement_is_formed_for_each_driver() -> None:
    call = append_call("sluicegate", "order-1", [NewMessage("T", 1)], 3)
    assert call.values == ("order-1", '[{"type":"T","data":1,"metadata":{}}]', 3)
    assert call.named_values == dict(zip(("p1", "p2", "p3"), call.values, strict=True))
    for text, first in ((call.numbered, "$1"), (call.formatted, "%s"), (call.named, ":p1")):
        assert f'FROM "sluicegate".append(CAST({first} AS text)' in text
