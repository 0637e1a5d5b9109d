"""Ways to publish messages with ids to a stream, with a bounded number of unacknowledged messages.

Every way gets prepared payloads, and counts the messages in the stream afterwards.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from sluicegate import Batcher, Limits, RowBatch, send

from ..stopwatch import Stopwatch
from .streams import connected

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from sluicegate.nats import NatsSink

    from ..stopwatch import Took

    Publish = Callable[[str, Sequence[bytes]], Awaitable[Took]]

WINDOW = 1_000
STREAM, SUBJECT = "PUBLISHED", "published.here"
PATIENCE = 30.0


async def gathered(url: str, payloads: Sequence[bytes]) -> Took:
    """Use nats-py's `publish`, one window after the other."""
    async with connected(url) as client:
        stream = client.jetstream(timeout=PATIENCE)
        watch = Stopwatch()
        for first in range(0, len(payloads), WINDOW):
            await asyncio.gather(
                *(
                    stream.publish(SUBJECT, each, headers={"Nats-Msg-Id": f"{first}-{number}"})
                    for number, each in enumerate(payloads[first : first + WINDOW])
                )
            )
        return watch.read()


async def in_a_window(url: str, payloads: Sequence[bytes]) -> Took:
    """Use nats-py's `publish_async`, whose window refills as acknowledgements arrive."""
    async with connected(url) as client:
        stream = client.jetstream(timeout=PATIENCE, publish_async_max_pending=WINDOW)
        watch = Stopwatch()
        futures = [
            await stream.publish_async(SUBJECT, each, headers={"Nats-Msg-Id": str(number)})
            for number, each in enumerate(payloads)
        ]
        await asyncio.gather(*futures)
        return watch.read()


def _sink(url: str) -> NatsSink:
    from sluicegate.nats import NatsSink

    return NatsSink(SUBJECT, servers=url, max_in_flight=WINDOW)


async def sink(url: str, payloads: Sequence[bytes]) -> Took:
    """Use the sink's `write`, one batch after the other."""
    async with _sink(url) as opened:
        watch = Stopwatch()
        for first in range(0, len(payloads), WINDOW):
            if errors := await send(opened, RowBatch(payloads[first : first + WINDOW])):
                raise AssertionError(f"{len(errors)} items failed: {errors}")
        return watch.read()


async def batcher(url: str, payloads: Sequence[bytes]) -> Took:
    """Use the sink with a batcher, which gets one item after another."""
    async with Batcher(_sink(url), limits=Limits(max_items=WINDOW, max_delay=PATIENCE)) as opened:
        watch = Stopwatch()
        for each in payloads:
            await opened.add(each)
        await opened.flush()
        return watch.read()


def turn(publish: Publish, url: str, payloads: Sequence[bytes]) -> Took:
    """Publish to a new stream in memory, and count its messages."""
    return asyncio.run(_turn(publish, url, payloads))


async def _turn(publish: Publish, url: str, payloads: Sequence[bytes]) -> Took:
    from nats.js.api import StorageType, StreamConfig

    config = StreamConfig(name=STREAM, subjects=[SUBJECT], storage=StorageType.MEMORY)
    async with connected(url) as client:
        stream = client.jetstream(timeout=PATIENCE)
        await stream.add_stream(config)
        try:
            took = await publish(url, payloads)
            found = (await stream.stream_info(STREAM)).state.messages
        finally:
            await stream.delete_stream(STREAM)
    if found != len(payloads):
        raise AssertionError(f"{found} of {len(payloads)} messages are in the stream")
    return took
