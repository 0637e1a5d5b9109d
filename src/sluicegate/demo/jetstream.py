"""The demo's scene on NATS: `NatsSink` and `JetStreamSource` with a divided stream between them."""

from __future__ import annotations

import asyncio
import importlib.util
from typing import TYPE_CHECKING, Any

from .._core.extras import missing
from .._core.stacking import stack
from ..batcher import Batcher, Limits
from ..nats import partitioned
from ..retry import Retry
from ..sinks import NatsSink
from ..testing import embedded_nats
from .carried import Carrier
from .consumer import PARTITIONS
from .legs import as_value, tailnum_of

if TYPE_CHECKING:
    from contextlib import ExitStack

    from .legs import Leg

FLIGHTS = 30_000
STREAM = "FLIGHTS"
SUBJECT = "flights"


def unavailable_reason() -> str | None:
    """The reason why the scene cannot run, as far as it is known without starting NATS."""
    if importlib.util.find_spec("nats") is None:
        return str(missing("nats", "demo", "the scene"))
    return None


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
    opened: Any = nats.connect(servers)  # pyright: ignore[reportUnknownMemberType]
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
