"""A stream on an embedded server, and the messages that a consumer has acknowledged."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import importlib.util
from typing import TYPE_CHECKING, Any

from sluicegate.testing import EmbeddedUnavailable, embedded_nats

from ..harness import CaseUnavailableError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterator

STREAM = "BENCHMARK"
SUBJECT = "orders"
PADDING = b"x" * 100
AT_ONCE = 1_000
"""Number of messages that are published before waiting for one of them."""
FILL_WITHIN = 60.0


@contextlib.contextmanager
def a_server() -> Iterator[str]:
    """Start a server and return its address. Raises `CaseUnavailableError` without one."""
    if importlib.util.find_spec("nats") is None:
        raise CaseUnavailableError("nats-py is not installed")
    try:
        with embedded_nats() as server:
            yield server.url
    except EmbeddedUnavailable as missing:
        raise CaseUnavailableError(str(missing)) from missing


@contextlib.asynccontextmanager
async def connected(url: str) -> AsyncGenerator[Any]:
    """Connect a client."""
    nats: Any = importlib.import_module("nats")
    client = await nats.connect(url)
    try:
        yield client
    finally:
        await client.close()


async def fill(url: str, messages: int, keys: int) -> None:
    """Create the stream, in files, with this number of messages; neighbours have different keys. A
    payload begins with the number of its message.
    """
    from nats.js.api import StorageType, StreamConfig

    async with connected(url) as client:
        stream = client.jetstream()
        config = StreamConfig(name=STREAM, subjects=[f"{SUBJECT}.*"], storage=StorageType.FILE)
        await stream.add_stream(config)
        for start in range(0, messages, AT_ONCE):
            numbers = range(start, min(start + AT_ONCE, messages))
            sent = [
                await stream.publish_async(
                    f"{SUBJECT}.k{number % keys}", b"%d %s" % (number, PADDING)
                )
                for number in numbers
            ]
            await asyncio.wait_for(asyncio.gather(*sent), FILL_WITHIN)


async def check_settled(url: str, durable: str, messages: int) -> None:
    """Raise `AssertionError` unless the server counts all messages as acknowledged; then delete the
    consumer.
    """
    async with connected(url) as client:
        stream = client.jetstream()
        info = await stream.consumer_info(STREAM, durable)
        floor, pending = info.ack_floor.stream_seq, info.num_ack_pending
        assert (floor, pending, info.num_pending) == (messages, 0, 0), (
            f"{durable}: {floor} of {messages} are acknowledged, {pending} pending, "
            f"{info.num_pending} unread"
        )
        await stream.delete_consumer(STREAM, durable)
