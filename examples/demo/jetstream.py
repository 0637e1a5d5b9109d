"""The demo's scene on NATS: `NatsSink` and `JetStreamSource` with a divided stream between them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from sluicegate import Batcher, Limits, Retry, stack
from sluicegate.nats import NatsSink, partitioned
from sluicegate.testing import embedded_nats

from .carried import Carrier
from .consumer import PARTITIONS
from .legs import as_value, tailnum_of

if TYPE_CHECKING:
    from contextlib import ExitStack

    from .legs import Leg

FLIGHTS = 30_000
STREAM = "FLIGHTS"
SUBJECT = "flights"


def _start(opened: ExitStack) -> str:
    server = opened.enter_context(embedded_nats())
    asyncio.run(_create_stream(server.url))
    return server.url


async def _create_stream(servers: str) -> None:
    from nats.js.api import StreamConfig, SubjectTransform

    import nats

    source, destination = partitioned(f"{SUBJECT}.*", PARTITIONS)
    config = StreamConfig(
        name=STREAM,
        subjects=[source],
        subject_transform=SubjectTransform(src=source, dest=destination),
    )
    opened: Any = nats.connect(servers)
    async with await opened as client:
        await client.jetstream().add_stream(config)


def _producer(servers: str) -> Batcher[Leg]:
    sink = NatsSink(lambda leg: f"{SUBJECT}.{leg['tailnum']}", servers=servers, value=as_value)
    return Batcher(stack(sink, Retry()), key=tailnum_of, name="producer", limits=Limits(workers=2))


CARRIER = Carrier(
    broker="nats",
    name="NATS",
    stream="a divided stream of JetStream",
    topic=STREAM,
    flights=FLIGHTS,
    start=_start,
    producer=_producer,
)
