"""A connection to NATS that goes silent: it stays open, and its bytes are lost."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

import pytest
from tests.kafka.source.storm_help import log_lines
from tests.nats.sink.nats_help import new_stream
from tests.sinks.test_down_behind_a_proxy import HOST
from tests.sinks.test_silent_connections import black_hole

from sluicegate import Consumer
from sluicegate.batcher import LoopClock
from sluicegate.consumer import Commits
from sluicegate.nats import JetStreamSource

if TYPE_CHECKING:
    from sluicegate import Message
    from sluicegate.testing import EmbeddedNats

DRAIN = 0.3
BUSY = 20.0
"""Seconds that a busy machine may need besides; by default the client pings every 120 s."""


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({}, marks=pytest.mark.long),
        {"ping_interval": 0.1, "ack_wait": 1.0, "connect_timeout": 0.2},
    ],
    ids=["default", "quick"],
)
async def test_a_consumer_continues_on_a_new_connection(
    embedded_nats: EmbeddedNats, real_clock: LoopClock, options: dict[str, Any]
) -> None:
    """The connection counts as lost after two unanswered pings. This is told even if nothing is held. Messages that were sent on it come
    again after their acknowledgement wait."""
    import nats

    name = await new_stream(embedded_nats)
    client = await nats.connect(embedded_nats.url)
    stream = client.jetstream()
    handled = {number: asyncio.Event() for number in range(4)}

    async def handle(message: Message) -> None:
        handled[int(message.value or b"")].set()

    async with black_hole(int(embedded_nats.url.rpartition(":")[2])) as hole, log_lines() as log:
        servers = f"nats://{HOST}:{hole.port}"
        source = JetStreamSource(name, servers=servers, durable="d", **options)
        consumer = Consumer(source, name="silent", drain=DRAIN)
        running = asyncio.ensure_future(consumer.run(handle))
        for first in (0, 2):
            if first:
                assert hole.swallow() == 1
            began = real_clock.now()
            for number in (first, first + 1):
                await stream.publish(f"{name}.x", b"%d" % number)
                await handled[number].wait()
            bound = 3 * options.get("ping_interval", 5.0) + options.get("ack_wait", 30.0)
            assert real_clock.now() - began < bound + BUSY
        log.records.clear()
        hole.swallows_new = True
        hole.swallow()
        await log.wait("no NATS server answers", logging.WARNING)
        assert "no NATS server answers" in str(consumer.health().not_ready)
        running.cancel()
        await asyncio.wait([running])
    await client.close()


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
        consumer = Consumer(source, name="silent", drain=DRAIN, commits=Commits(every=10.0))
        running = asyncio.ensure_future(consumer.run(handle))
        await handled.wait()
        assert hole.swallow() == 1
        hole.swallows_new = swallows_new
        began = real_clock.now()
        running.cancel()
        await asyncio.wait([running])
        assert real_clock.now() - began < DRAIN + 1.0 + 3.0  # an answer is awaited for 5 s
