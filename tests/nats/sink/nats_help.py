"""Streams as an independent client reads them, and writes to a `NatsSink`.

White box: a delivery without a batcher, with its details.
"""

from __future__ import annotations

import itertools
import json
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from nats.aio.client import Client
from nats.js.api import RetentionPolicy, StreamConfig

from sluicegate import RowBatch, send
from sluicegate._core.delivery.delivery import Delivery
from sluicegate.nats.sink.messages import PublishAck

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Mapping, Sequence

    from nats.js.client import JetStreamContext

    from sluicegate import ErrorClass, Outcome, Sink
    from sluicegate._core.delivery.host import Condition
    from sluicegate.testing import EmbeddedNats

_numbers = itertools.count(1)


class Read(NamedTuple):
    """A message of a stream."""

    sequence: int
    subject: str
    data: bytes
    headers: Mapping[str, str]

    @property
    def item(self) -> Any:
        """The payload, decoded from JSON."""
        return json.loads(self.data)


async def _ignored(error: Exception) -> None:
    """Print nothing."""


@asynccontextmanager
async def plain(server: EmbeddedNats, **options: Any) -> AsyncIterator[Client]:
    """A client of nats-py with default options."""
    client = Client()
    try:
        await client.connect(server.url.split(","), error_cb=_ignored, **options)
        yield client
    finally:
        await client.close()


async def new_stream(
    server: EmbeddedNats, *, login: Mapping[str, Any] | None = None, **config: Any
) -> str:
    """The name of a new stream, which has the subjects below its name."""
    name = f"S{next(_numbers)}"
    async with plain(server, **(login or {})) as client:
        limits = StreamConfig(name=name, subjects=[f"{name}.>"], **config)
        await context_of(client).add_stream(limits)
    return name


def context_of(client: Client) -> JetStreamContext:
    """The JetStream context of a client."""
    return client.jetstream(timeout=10)


async def count(server: EmbeddedNats, stream: str) -> int:
    """The number of messages in the stream, as the server reports it."""
    async with plain(server) as client:
        return (await context_of(client).stream_info(stream)).state.messages


async def read(server: EmbeddedNats, stream: str) -> list[Read]:
    """Every message of a stream, by sequence number; as many as the server reports."""
    async with plain(server) as client:
        context = context_of(client)
        state = (await context.stream_info(stream)).state
        found: list[Read] = []
        subscription = await context.subscribe(f"{stream}.>", stream=stream, ordered_consumer=True)
        while len(found) < state.messages:
            message = await subscription.next_msg(timeout=10)
            found.append(
                Read(
                    message.metadata.sequence.stream,
                    message.subject,
                    message.data,
                    message.headers or {},
                )
            )
        await subscription.unsubscribe()
        return found


class Books:
    """The outcomes and details of a batch without a batcher."""

    def __init__(self) -> None:
        self.outcomes: dict[int, Outcome] = {}
        self.details: dict[int, PublishAck] = {}

    def book_outcome(
        self, indices: Sequence[int], outcome: Outcome, details: Mapping[int, object] | None
    ) -> None:
        """Book the outcomes of items."""
        self.outcomes |= dict.fromkeys(indices, outcome)
        for index, detail in (details or {}).items():
            assert isinstance(detail, PublishAck)
            self.details[index] = detail

    def heard(self, errors: Iterable[BaseException]) -> None: ...
    def reported(self, source: object, condition: Condition | None) -> None: ...
    def retrying(self, kind: ErrorClass, items: int, delay: float) -> None: ...
    def throttled(self, until: float) -> None: ...


class Written:
    """A batch and its results. `write` sends the items that have no outcome yet."""

    def __init__(self, items: Iterable[Any], keys: Sequence[object] | None = None) -> None:
        given = [*items]
        self.books = Books()
        delivery = Delivery(len(given), books=self.books, keeps_prefix=keys is not None)
        self.batch: RowBatch[Any] = RowBatch(given, keys=keys, delivery=delivery)

    async def write(self, sink: Sink[Any]) -> dict[int, BaseException]:
        """The errors, by index."""
        return await send(sink, self.batch)


__all__ = [
    "Read",
    "RetentionPolicy",
    "Written",
    "context_of",
    "count",
    "new_stream",
    "plain",
    "read",
]
