"""The embedded Kafka: starts as any user, stops like a crash, restarts on the same port and data.
White box: the jars of its program.
"""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.errors import InvalidTopicError, TopicAlreadyExistsError
from aiokafka.structs import TopicPartition

from sluicegate._core.cache import fetch
from sluicegate.testing import EmbeddedKafka, EmbeddedUnavailable
from sluicegate.testing import embedded_kafka as start_kafka
from sluicegate.testing.servers.java import PROGRAMS
from sluicegate.testing.servers.require import there_or_skip

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sluicegate.batcher import LoopClock


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedKafka]:
    """A server for this module, which tests kill."""
    with there_or_skip("kafka", start_kafka()) as server:
        yield server


@pytest.fixture
def running(server: EmbeddedKafka) -> EmbeddedKafka:
    if not server.is_ours:
        pytest.skip("a broker that is not ours is not killed")
    server.start()
    return server


async def put(server: EmbeddedKafka, topic: str, *values: bytes, partition: int = 0) -> None:
    async with AIOKafkaProducer(bootstrap_servers=server.bootstrap, acks="all") as producer:
        for value in values:
            await producer.send_and_wait(topic, value, partition=partition)


async def get(
    server: EmbeddedKafka, topic: str, count: int, *, partition: int = 0
) -> list[bytes | None]:
    """The first `count` values of a partition."""
    async with AIOKafkaConsumer(
        bootstrap_servers=server.bootstrap, auto_offset_reset="earliest"
    ) as consumer:
        consumer.assign([TopicPartition(topic, partition)])
        return [(await consumer.getone()).value for _ in range(count)]


async def test_what_is_produced_is_consumed_and_a_topic_has_its_partitions(
    running: EmbeddedKafka, real_clock: LoopClock
) -> None:
    running.create_topic("several", partitions=3)
    await put(running, "several", b"a", b"b", partition=2)
    assert await get(running, "several", 2, partition=2) == [b"a", b"b"]
    async with AIOKafkaProducer(bootstrap_servers=running.bootstrap) as producer:
        assert await producer.partitions_for("several") == {0, 1, 2}


async def test_a_group_takes_its_position_up_again(
    running: EmbeddedKafka, real_clock: LoopClock
) -> None:
    running.create_topic("grouped")
    await put(running, "grouped", b"first", b"second")
    for expected in (b"first", b"second"):
        async with AIOKafkaConsumer(
            "grouped",
            bootstrap_servers=running.bootstrap,
            group_id="group",
            auto_offset_reset="earliest",
            enable_auto_commit=False,
        ) as consumer:
            record = await consumer.getone()
            assert record.value == expected
            await consumer.commit({TopicPartition("grouped", 0): record.offset + 1})


async def test_a_transaction_is_seen_when_it_commits_and_not_when_it_aborts(
    running: EmbeddedKafka, real_clock: LoopClock
) -> None:
    running.create_topic("transactional")
    async with AIOKafkaProducer(
        bootstrap_servers=running.bootstrap, transactional_id="writer"
    ) as producer:
        await producer.begin_transaction()
        await producer.send_and_wait("transactional", b"aborted")
        await producer.abort_transaction()
        async with producer.transaction():
            await producer.send_and_wait("transactional", b"committed")
    async with AIOKafkaConsumer(
        "transactional",
        bootstrap_servers=running.bootstrap,
        auto_offset_reset="earliest",
        isolation_level="read_committed",
    ) as consumer:
        assert (await consumer.getone()).value == b"committed"


@pytest.mark.long
@pytest.mark.parametrize(
    "way",
    [
        pytest.param("paused, kill", marks=pytest.mark.long),
        "the process alone",
        pytest.param("paused, stop", marks=pytest.mark.long),
    ],
)
async def test_what_was_acknowledged_survives_and_the_port_stays(
    running: EmbeddedKafka, real_clock: LoopClock, way: str
) -> None:
    before, bootstrap = running.pid, running.bootstrap
    assert before is not None
    topic = f"kept-{before}"
    running.create_topic(topic)
    await put(running, topic, b"kept")
    if way.startswith("paused"):
        running.pause()
    if way == "the process alone":
        os.kill(before, signal.SIGKILL)
        psutil.wait_procs([psutil.Process(before)], timeout=20)
    elif way.endswith("stop"):
        running.stop()
    else:
        running.kill()
    assert running.pid is None
    running.restart()
    assert running.bootstrap == bootstrap
    assert running.pid not in {None, before}
    assert await get(running, topic, 1) == [b"kept"]
    await put(running, topic, b"and more")
    assert await get(running, topic, 2) == [b"kept", b"and more"]


async def test_a_paused_server_goes_on_where_it_was(
    running: EmbeddedKafka, real_clock: LoopClock
) -> None:
    topic = f"paused-{running.pid}"
    running.create_topic(topic)
    async with AIOKafkaProducer(bootstrap_servers=running.bootstrap) as producer:
        await producer.partitions_for(topic)
        running.pause()
        sent = await producer.send(topic, b"waits")
        flushing = asyncio.ensure_future(producer.flush())
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.shield(flushing), 0.05)
        running.resume()
        assert (await sent).offset == 0
        await flushing


@pytest.mark.long
def test_a_start_compiles_no_program(running: EmbeddedKafka) -> None:
    arguments = psutil.Process(running.pid).cmdline()
    assert "Kafka" in arguments
    assert not [each for each in arguments if each.endswith(".java")]


def test_what_the_broker_says_against_a_topic_is_raised(running: EmbeddedKafka) -> None:
    running.create_topic("twice")
    with pytest.raises(TopicAlreadyExistsError, match="twice"):
        running.create_topic("twice")
    with pytest.raises(InvalidTopicError):
        running.create_topic("not a name")


def test_a_setting_that_the_server_refuses_is_told_and_nothing_is_left() -> None:
    context = start_kafka({"num.network.threads": "none"})
    with pytest.raises(EmbeddedUnavailable, match=r"num\.network\.threads"):
        context.__enter__()


def test_a_broker_that_is_not_ours_is_used_and_not_ended(
    running: EmbeddedKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLUICEGATE_KAFKA_BOOTSTRAP", running.bootstrap)
    with start_kafka() as theirs:
        assert theirs.bootstrap == running.bootstrap
        assert theirs.pid is None
        theirs.create_topic("through-theirs")
        for change in (
            theirs.start,
            theirs.stop,
            theirs.kill,
            theirs.restart,
            theirs.pause,
            theirs.resume,
        ):
            with pytest.raises(EmbeddedUnavailable, match="external broker"):
                change()
    assert running.pid is not None


@pytest.mark.long
def test_a_home_gives_the_jars(
    running: EmbeddedKafka, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "libs").symlink_to(fetch(PROGRAMS / "kafka.xml"))
    monkeypatch.setenv("SLUICEGATE_KAFKA_HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with start_kafka() as server:
        assert server.pid not in {None, running.pid}
    assert all(
        path.name.startswith("kafka-program-") for path in (tmp_path / "cache/sluicegate").iterdir()
    )


def test_starting_stopping_and_killing_twice_is_harmless(running: EmbeddedKafka) -> None:
    pid = running.pid
    running.start()
    assert running.pid == pid
    assert f"pid={pid}" in repr(running)
    running.kill()
    running.kill()
    running.stop()
    running.resume()
    running.pause()
    assert running.pid is None
    assert not [each for each in psutil.process_iter() if each.pid == pid]
