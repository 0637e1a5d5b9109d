"""Headers of messages; headers equal to earlier ones are not parsed again."""

from __future__ import annotations

import asyncio
import itertools
from typing import TYPE_CHECKING

import nats

from penstock import Consumer
from penstock.sources.jetstream import JetStreamSource

if TYPE_CHECKING:
    from penstock import Message
    from penstock.testing import EmbeddedNats

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

    await consumer.receive(handle)
    return found
