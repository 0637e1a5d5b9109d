"""Headers of messages; headers equal to earlier ones are not parsed again."""

from __future__ import annotations

import asyncio
import itertools
from typing import TYPE_CHECKING, Any

from tests.nats.jetstream.dense_help import publish_raw

import nats
from sluicegate import Consumer
from sluicegate.consumer import Poison
from sluicegate.nats import JetStreamSource
from sluicegate.sinks import MemorySink

if TYPE_CHECKING:
    from sluicegate import Message
    from sluicegate.testing import EmbeddedNats

HEADERS = [
    {"Trace": "1"},
    {"Trace": "1"},
    None,
    {"Trace": "2"},
    {"Trace": "1", "Tenant": "acme"},
    None,
]
_numbers = itertools.count(1)


def test_every_message_has_its_own_headers(embedded_nats: EmbeddedNats) -> None:
    """consumer/C:C7: without those that the server has added."""
    found = asyncio.run(asyncio.wait_for(headers_of_all(embedded_nats.url), 30.0))
    assert found == [headers or {} for headers in HEADERS]


async def headers_of_all(url: str) -> list[dict[str, str]]:
    """Publish the messages to a new stream and consume them."""
    name = f"headers-{next(_numbers)}"
    async with await nats.connect(url) as client:
        stream = client.jetstream()
        await stream.add_stream(name=name, subjects=[f"{name}.*"])
        for number, headers in enumerate(HEADERS):
            await stream.publish(f"{name}.ann", str(number).encode(), headers=headers)
    source = JetStreamSource(name, servers=url, durable="d", prefetch=2)
    consumer = Consumer(source, name="headers")
    found: list[dict[str, str]] = []

    async def handle(message: Message) -> None:
        found.append({key: value.decode() for key, value in message.headers})
        if len(found) == len(HEADERS):
            consumer.stop()

    await consumer.run(handle)
    return found


UNUSUAL = [
    b"A: 1\r\nB:2\r\nA:  3 \r\nC: \r\nD: \xff\r\n",
    b"\xff: 1\r\nA: 1\r\n",
    b"no colon\r\n",
    b"A: 4\r\n",
]


def test_all_values_of_a_header_are_kept_and_a_bad_one_is_poison_alone(
    embedded_nats: EmbeddedNats,
) -> None:
    """O-T18: with blanks, and in order; also a message whose subject is not UTF-8."""
    found, letters = asyncio.run(asyncio.wait_for(unusual(embedded_nats.url), 30.0))
    assert sorted(found, key=len) == [
        [],
        [("A", b"4")],
        [("A", b"1"), ("B", b"2"), ("A", b" 3 "), ("C", b""), ("D", b"\xff")],
    ]
    assert [letter.cause_type for letter in letters] == [
        "UnicodeDecodeError",
        "ValueError",
        "UnicodeEncodeError",
    ]
    headers = [dict(letter.item["headers"]) for letter in letters]
    assert headers[0]["headers"].startswith(b"NATS/1.0\r\n" + UNUSUAL[1])
    assert headers[2] == {"A": b"5", "subject": headers[2]["subject"]}
    assert headers[2]["subject"].endswith(b".\xff\xfe")


async def unusual(url: str) -> tuple[list[Any], list[Any]]:
    """Publish messages that no client of Python would send; return headers, and dead letters."""
    name = f"headers-{next(_numbers)}"
    async with await nats.connect(url) as client:
        await client.jetstream().add_stream(name=name, subjects=[f"{name}.*"])
    for headers in UNUSUAL:
        await publish_raw(url, f"{name}.ann".encode(), headers)
    await publish_raw(url, name.encode() + b".\xff\xfe", b"A: 5\r\n")
    await publish_raw(url, f"{name}.dan".encode())
    letters = MemorySink[Any]()
    source = JetStreamSource(name, servers=url, durable="d", prefetch=2)
    consumer = Consumer(source, name="headers", poison=Poison("skip", dead_letters=letters))
    found: list[Any] = []

    async def handle(message: Message) -> None:
        found.append(list(message.headers))
        if len(found) == 3:
            consumer.stop()

    await consumer.run(handle)
    return found, sorted(letters.items, key=lambda letter: letter.item["offset"])
