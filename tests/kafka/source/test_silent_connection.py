"""Connections to Kafka that go silent: they stay open, and their bytes are lost."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
import threading
from asyncio.subprocess import DEVNULL, PIPE
from typing import TYPE_CHECKING, Any

import pytest
from tests.children import child
from tests.kafka.source.kafka_help import fill, new_name, new_topic
from tests.kafka.source.storm_help import log_lines
from tests.sinks.test_down_behind_a_proxy import HOST
from tests.sinks.test_silent_connections import black_hole, join

from sluicegate import Consumer
from sluicegate.batcher import LoopClock
from sluicegate.consumer import Commits
from sluicegate.kafka import ConfluentKafkaSource, KafkaAccess, KafkaSource

if TYPE_CHECKING:
    from sluicegate import Message
    from sluicegate.testing import EmbeddedKafka

DRAIN = 0.3
ANSWER_WITHIN = 10.0
QUICK = 3.0
BUSY = 1.5
"""Seconds that a busy machine may need besides; a quick source awaits answers for 3 s."""


def aiokafka(topic: str, port: int) -> Any:
    return KafkaSource(topic, bootstrap=f"{HOST}:{port}", group=new_name("group"))


def aiokafka_quick(topic: str, port: int) -> Any:
    return KafkaSource(
        topic,
        bootstrap=KafkaAccess(f"{HOST}:{port}", request_timeout=QUICK),
        group=new_name("group"),
    )


def librdkafka(topic: str, port: int) -> Any:
    return ConfluentKafkaSource(topic, bootstrap=f"{HOST}:{port}", group=new_name("group"))


@pytest.mark.parametrize(
    ("made", "within"),
    [
        pytest.param(aiokafka, ANSWER_WITHIN, marks=pytest.mark.long),
        (aiokafka_quick, QUICK),
        pytest.param(librdkafka, ANSWER_WITHIN, marks=pytest.mark.long),
    ],
)
async def test_a_reader_continues_on_new_connections_and_ends_within_its_bound(
    broker: EmbeddedKafka, real_clock: LoopClock, made: Any, within: float
) -> None:
    """Connections go silent; then new ones, too. Both is reported, before a request has failed. The last commit and the end of the membership have no answer."""
    before = {*threading.enumerate()}
    topic = await new_topic(broker, 2)
    await fill(broker, topic, 10)
    handled = [asyncio.Event() for _ in range(20)]

    async def handle(message: Message) -> None:
        handled[message.offset].set()

    async with black_hole(int(broker.bootstrap.rpartition(":")[2])) as hole, log_lines() as log:
        source = made(topic, hole.port)
        consumer = Consumer(source, name="silent", drain=DRAIN, commits=Commits(every=0.2))
        running = asyncio.ensure_future(consumer.run(handle))
        await handled[9].wait()
        hole.swallow()
        began = real_clock.now()
        await fill(broker, topic, 10)
        await log.wait("no broker can be reached", logging.WARNING)
        await log.wait("delivers again")
        await handled[19].wait()
        assert real_clock.now() - began < within + 4.0 + 20.0  # by default a client waits 40 s
        log.records.clear()
        hole.swallows_new = True
        hole.swallow()
        if within == ANSWER_WITHIN:
            await log.wait("no broker can be reached", logging.WARNING)
            assert "no broker can be reached" in str(consumer.health().not_ready)
        began = real_clock.now()
        running.cancel()
        await asyncio.wait([running])
        assert real_clock.now() - began < DRAIN + 1.0 + BUSY
        assert "was cut off" not in str(log.lines())
        hole.swallows_new = False
        hole.swallow()
        await asyncio.to_thread(join, before, 2 * ANSWER_WITHIN)  # it can leave its group now


PROGRAM = """
import asyncio, sys
import sluicegate
from sluicegate.consumer import Commits
from sluicegate.kafka import ConfluentKafkaSource

topic, bootstrap = sys.argv[1:]
source = ConfluentKafkaSource(topic, bootstrap=bootstrap, group=topic)
commits = Commits(every=0.2)

async def handle(_):
    print("handled", flush=True)

async def main():
    async with sluicegate.Consumer(source, name="silent", drain=0.3, commits=commits) as consumer:
        await consumer.run(handle)

sluicegate.run(main())
"""


@pytest.mark.long
async def test_no_thread_of_librdkafka_keeps_a_process(
    broker: EmbeddedKafka, real_clock: LoopClock
) -> None:
    """It closes only after a commit is answered, which may take for ever."""
    topic = await new_topic(broker)
    await fill(broker, topic, 1)
    async with black_hole(int(broker.bootstrap.rpartition(":")[2])) as hole:
        where = f"{HOST}:{hole.port}"
        async with child(
            sys.executable, "-c", PROGRAM, topic, where, stdout=PIPE, stderr=DEVNULL
        ) as process:
            assert process.stdout is not None
            assert await process.stdout.readline() == b"handled\n"
            hole.swallows_new = True
            hole.swallow()
            began = real_clock.now()
            process.send_signal(signal.SIGTERM)
            await process.wait()
            assert real_clock.now() - began < DRAIN + 1.0 + 0.5
