"""A connection to NATS that goes silent: closing a consumer ends within its bound."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from tests.sinks.nats.nats_help import new_stream
from tests.sinks.test_down_behind_a_proxy import HOST
from tests.sinks.test_silent_connections import black_hole

from penstock import Consumer, LoopClock
from penstock.sources.jetstream import JetStreamSource

if TYPE_CHECKING:
    from penstock.consumer import Message
    from penstock.testing import EmbeddedNats

DRAIN = 0.3


@pytest.mark.parametrize("swallows_new", [pytest.param(False, marks=pytest.mark.long), True])
async def test_a_consumer_closes_within_its_drain_and_a_second(
    embedded_nats: EmbeddedNats, real_clock: LoopClock, swallows_new: bool
) -> None:
    """Its last commit, and giving back its messages, have no answer."""
    import nats

    name = await new_stream(embedded_nats)
    client = await nats.connect(embedded_nats.url)
    await client.jetstream().publish(f"{name}.x", b"1")
    await client.close()
    handled = asyncio.Event()

    async def handle(_: Message) -> None:
        handled.set()

    async with black_hole(int(embedded_nats.url.rpartition(":")[2])) as hole:
        source = JetStreamSource(name, servers=f"nats://{HOST}:{hole.port}", durable="d")
        consumer = Consumer(source, name="silent", drain=DRAIN, commit_every=10.0)
        running = asyncio.ensure_future(consumer.receive(handle))
        await handled.wait()
        assert hole.swallow() == 1
        hole.swallows_new = swallows_new
        began = real_clock.now()
        running.cancel()
        await asyncio.wait([running])
        assert real_clock.now() - began < DRAIN + 1.0 + 0.3
