"""Items as messages: their parts, and items that cannot be converted, which fail alone.

White box: the type of an acknowledgement, which no package exports.
"""

from __future__ import annotations

import pickle
import ssl
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest
from tests.nats.sink.nats_help import Written, new_stream, read

from sluicegate import Batcher, ConfigError, Outcome, PermanentError, RowBatch, send
from sluicegate.errors import KeyStopped, NotPicklableError
from sluicegate.nats import NatsSink
from sluicegate.nats.sink.messages import PublishAck

if TYPE_CHECKING:
    from sluicegate.batcher import LoopClock
    from sluicegate.testing import EmbeddedNats


def sink(server: EmbeddedNats, subject: Any, **given: Any) -> NatsSink:
    return NatsSink(subject, servers=server.url, **given)


async def test_the_parts_of_a_message_come_from_fields_and_functions(
    embedded_nats: EmbeddedNats, real_clock: LoopClock
) -> None:
    stream = await new_stream(embedded_nats)
    made = NatsSink(
        subject_field="to",
        servers=embedded_nats.url,
        value=lambda item: item["text"],
        headers="headers",
        message_id="id",
    )
    items = [
        {"to": f"{stream}.a", "text": "ä", "headers": {"X-One": "1", "empty": ""}, "id": "1"},
        {"to": f"{stream}.b", "text": b"\r\nPUB x 0\r\n", "headers": None, "id": None},
        {"to": f"{stream}.c", "text": None, "headers": [("X-One", "ü".encode())], "id": "3"},
        {"to": f"{stream}.d", "text": "", "headers": [{"key": "X", "value": b"1"}], "id": "4"},
    ]
    async with made:
        assert await send(made, RowBatch(items)) == {}
    assert [each[1:] for each in await read(embedded_nats, stream)] == [
        (f"{stream}.a", "ä".encode(), {"X-One": "1", "empty": "", "Nats-Msg-Id": "1"}),
        (f"{stream}.b", b"\r\nPUB x 0\r\n", {}),
        (f"{stream}.c", b"", {"X-One": "ü", "Nats-Msg-Id": "3"}),
        (f"{stream}.d", b"", {"X": "1", "Nats-Msg-Id": "4"}),
    ]


async def test_an_item_has_its_sequence_as_details(
    embedded_nats: EmbeddedNats, real_clock: LoopClock
) -> None:
    stream = await new_stream(embedded_nats)
    async with Batcher(sink(embedded_nats, f"{stream}.a"), name="details") as batcher:
        receipt = await batcher.submit({"n": 1})
        await receipt
    assert receipt.detail == PublishAck(stream, 1)


@pytest.mark.parametrize(
    ("given", "item", "told"),
    [
        ({"subject": lambda item: item}, "has space.a", "is not a subject to publish to"),
        ({"subject": lambda item: item}, "a.b\r\nPUB c 0\r\n", "is not a subject"),
        ({"subject": lambda item: item}, "a.*", "is not a subject"),
        ({"subject": lambda item: item}, "a..b", "is not a subject"),
        ({"subject": lambda item: item}, ".", "is not a subject"),
        ({"subject": lambda item: item}, ">", "is not a subject"),
        ({"subject": lambda item: item}, 7, "is not a subject"),
        ({"subject": lambda item: item}, "a" * 4000, "longer than 3,500 bytes"),
        ({"headers": lambda item: item}, {"a b": "1"}, "is not a valid header name"),
        ({"headers": lambda item: item}, {"a": "1\r\nb: 2"}, "has a line break"),
        ({"headers": lambda item: item}, {"a": 1}, "is int; expected a string"),
        ({"headers": lambda item: item}, {"nats-msg-id": "1"}, "use message_id="),
        ({"headers": lambda item: item}, {"Nats-Expected-Stream": "1"}, "use stream="),
        ({"headers": lambda item: item}, {"nats-expected-last-sequence": "1"}, "sent again"),
        ({"headers": lambda item: item}, 7, "not iterable"),
        ({"message_id": lambda item: item}, "a\nb", "the message id has a line break"),
        ({"message_id": lambda item: item}, True, "the message id is bool"),
        ({"value": lambda item: item}, 7, "the value is int"),
        ({"value": "missing"}, {"n": 1}, "KeyError"),
    ],
)
async def test_an_item_that_cannot_be_a_message_fails_alone(
    embedded_nats: EmbeddedNats, real_clock: LoopClock, given: dict[str, Any], item: Any, told: str
) -> None:
    stream = await new_stream(embedded_nats)
    subject = given.pop("subject", None)

    def of(each: Any) -> Any:
        return f"{stream}.a" if each is good or subject is None else subject(each)

    good = {"n": 0}
    functions = {
        name: (lambda each, part=part: None if each is good else part(each))
        if callable(part)
        else part
        for name, part in given.items()
    }
    if "missing" in given.values():
        good = {"n": 0, "missing": b""}  # type: ignore[dict-item]  # a value
    made = sink(embedded_nats, of, **functions)
    async with made:
        errors = await send(made, RowBatch([good, item]))
    assert list(errors) == [1]
    assert type(errors[1]) is PermanentError
    assert told in str(errors[1])
    assert len(await read(embedded_nats, stream)) == 1


async def test_a_message_over_the_limit_of_the_server_is_refused_before_it_is_sent(
    embedded_nats: EmbeddedNats, real_clock: LoopClock
) -> None:
    """The limit includes the headers; the server ends the connection if one byte is too many."""
    stream = await new_stream(embedded_nats)
    async with sink(embedded_nats, f"{stream}.a", message_id=lambda _: None) as made:
        errors = await send(made, RowBatch([bytes(1 << 20), bytes((1 << 20) + 1), b"small"]))
    assert list(errors) == [1]
    assert "is larger than the server's max_payload of 1,048,576" in str(errors[1])
    with_headers = sink(embedded_nats, f"{stream}.a", headers=lambda _: {"one": "more"})
    async with with_headers:
        errors = await send(with_headers, RowBatch([bytes(1 << 20), b"small"]))
    assert list(errors) == [0]
    assert len(await read(embedded_nats, stream)) == 3


async def test_a_batch_of_large_messages_is_sent_a_part_at_a_time(
    embedded_nats: EmbeddedNats, real_clock: LoopClock
) -> None:
    stream = await new_stream(embedded_nats)
    async with sink(embedded_nats, f"{stream}.a") as made:
        assert await send(made, RowBatch([bytes(1_000_000)] * 30)) == {}
    assert len(await read(embedded_nats, stream)) == 30


async def test_a_repeated_write_is_recognized_by_its_ids(
    embedded_nats: EmbeddedNats, real_clock: LoopClock
) -> None:
    stream = await new_stream(embedded_nats)
    batch = RowBatch([{"n": number} for number in range(3)])
    async with sink(embedded_nats, f"{stream}.a") as made:
        first, second = await made.write(batch), await made.write(batch.pick([2, 0]))
    assert first is not None
    assert second is not None
    assert first.outcomes == {}
    assert second.outcomes == {0: Outcome.DUPLICATE, 1: Outcome.DUPLICATE}
    assert second.details == {0: PublishAck(stream, 3, True), 1: PublishAck(stream, 1, True)}
    assert [each.item["n"] for each in await read(embedded_nats, stream)] == [0, 1, 2]


async def test_a_number_and_a_uuid_are_ids(
    embedded_nats: EmbeddedNats, real_clock: LoopClock
) -> None:
    stream = await new_stream(embedded_nats)
    made = sink(embedded_nats, f"{stream}.a", message_id=lambda item: item, value=lambda _: None)
    async with made:
        assert await send(made, RowBatch([7, UUID(int=8), 7])) == {}
    ids = [each.headers["Nats-Msg-Id"] for each in await read(embedded_nats, stream)]
    assert ids == ["7", str(UUID(int=8))]


async def test_without_ids_a_repeated_write_is_stored_again(
    embedded_nats: EmbeddedNats, real_clock: LoopClock
) -> None:
    stream = await new_stream(embedded_nats)
    batch = RowBatch([{"n": 1}])
    async with sink(embedded_nats, f"{stream}.a", message_id=lambda _: None) as made:
        for _ in range(2):
            assert (await made.write(batch)).outcomes == {}  # type: ignore[union-attr]  # an answer
    assert len(await read(embedded_nats, stream)) == 2


async def test_nothing_is_stored_behind_a_refused_item_of_its_key(
    embedded_nats: EmbeddedNats, real_clock: LoopClock
) -> None:
    """consumer/C: order per key; refused by the server, not by the sink."""
    stream = await new_stream(embedded_nats, max_msg_size=200)
    made = sink(embedded_nats, f"{stream}.a")
    items: list[dict[str, Any]] = [
        {"k": "a", "n": 0},
        {"k": "b", "n": 1},
        {"k": "a", "n": 2, "long": "x" * 200},
        {"k": "a", "n": 3},
        {"k": "b", "n": 4},
        {"k": "a", "n": 5},
    ]
    written = Written(items, keys=[item["k"] for item in items])
    async with made:
        errors = await written.write(made)
    assert {index: type(error) for index, error in errors.items()} == {
        2: PermanentError,
        3: KeyStopped,
        5: KeyStopped,
    }
    assert sorted(each.item["n"] for each in await read(embedded_nats, stream)) == [0, 1, 4]


async def test_messages_of_a_key_keep_their_order_and_keys_are_sent_side_by_side(
    embedded_nats: EmbeddedNats, real_clock: LoopClock
) -> None:
    stream = await new_stream(embedded_nats)
    items = [{"k": number % 7, "n": number} for number in range(500)]
    async with sink(embedded_nats, f"{stream}.a") as made:
        written = Written(items, keys=[item["k"] for item in items])
        assert await written.write(made) == {}
    found = [each.item for each in await read(embedded_nats, stream)]
    assert len(found) == 500
    for key in range(7):
        of_key = [item["n"] for item in found if item["k"] == key]
        assert of_key == sorted(of_key)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({}, "subject=None: must be given, or subject_field"),
        ({"subject": "a", "subject_field": "b"}, "cannot be combined with subject_field"),
        ({"subject": "a b"}, "subject='a b': must be a subject or a function"),
        ({"subject": "a.>"}, "subject='a.>'"),
        ({"subject": lambda: "a"}, "subject=.*take one argument"),
        ({"subject_field": ""}, "subject_field=''"),
        ({"subject": "a", "value": 7}, "value=7"),
        ({"subject": "a", "stream": "a.b"}, "stream='a.b': must be a stream name"),
        ({"subject": "a", "max_in_flight": 0}, "max_in_flight=0"),
        ({"subject": "a", "ack_timeout": -1}, "ack_timeout=-1"),
        ({"subject": "a", "pasword": "x"}, "pasword=...: is not an option of NatsSink"),
    ],
)
def test_a_bad_argument_is_told(given: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        NatsSink(servers="host:4222", **given)


def test_a_finished_tls_context_cannot_travel_and_is_named() -> None:
    made = NatsSink("a.b", servers="host:4222", tls=ssl.create_default_context())
    with pytest.raises(NotPicklableError, match="the argument tls=SSLContext cannot be pickled"):
        pickle.dumps(made)


def test_a_description_shows_no_secret_and_travels() -> None:
    made = NatsSink("a.b", servers="nats://app:s3cret@host:4222", password="s3cret")
    assert repr(made) == "NatsSink('a.b', servers='nats://host:4222')"
    assert repr(pickle.loads(pickle.dumps(made))) == repr(made)
    assert repr(NatsSink(lambda _: "a", servers="h")) == "NatsSink(..., servers='h')"
