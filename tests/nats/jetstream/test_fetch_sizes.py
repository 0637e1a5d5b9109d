"""Memory of large messages: what is fetched ahead is limited in bytes, by the consumer's window."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from tests.nats.jetstream.streams_help import new_stream
from tests.postgres.streams.source.test_fetch_sizes import peak_below

from sluicegate import Consumer
from sluicegate.consumer import InFlight
from sluicegate.nats import JetStreamSource

if TYPE_CHECKING:
    from sluicegate import Message
    from sluicegate.testing import EmbeddedNats

pytestmark = pytest.mark.usefixtures("real_clock")

RECORD, RECORDS = 1 << 18, 64


@pytest.mark.parametrize(
    ("window", "most"),
    [(8 * RECORD, 18 * RECORD), (1000, 8 * RECORD)],  # running, held, fetched, and in the client
    ids=["several", "less than one"],
)
async def test_memory_is_twice_the_window_and_a_few_messages(
    embedded_nats: EmbeddedNats, window: int, most: int
) -> None:
    async with new_stream(embedded_nats) as stream:
        consumer: Consumer
        found: list[int] = []

        async def handle(message: Message) -> None:
            found.append(message.offset)
            if len(found) in {1, 1 + RECORDS}:
                consumer.stop()
            for _ in range(50):
                await asyncio.sleep(0)

        async def handle_all() -> None:
            nonlocal consumer
            source = JetStreamSource(stream.name, durable="d", servers=embedded_nats.url)
            consumer = Consumer(source, name="c", in_flight=InFlight(bytes=window), concurrency=2)
            await consumer.run(handle)

        await stream.publish("first", "")  # loads modules
        await handle_all()
        for n in range(RECORDS):
            await stream.publish(f"k{n % 8}", "x" * RECORD)
        with peak_below(most):
            await handle_all()
        assert sorted(found) == [*range(1, RECORDS + 2)]
