"""The pages on Kafka: their programs run on a broker, and the source reports the documented
reasons.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
import signal
import sys
from typing import TYPE_CHECKING, Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, ConsumerRebalanceListener
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.coordinator.assignors.range import RangePartitionAssignor
from tests.children import child
from tests.examples.example import DOCS, EXAMPLES, load, printed_on
from tests.kafka.access_help import kafka_args

from sluicegate import ConfigError, Consumer
from sluicegate.kafka import KafkaAccess, KafkaSource
from sluicegate.testing.servers.program import free_port

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from sluicegate.batcher import LoopClock
    from sluicegate.testing import EmbeddedKafka, EmbeddedPostgres, EmbeddedRegistry

PAGE = "how-to/consume-from-kafka.md"
TIMES: dict[str, Any] = {"session_timeout": 6.0, "rebalance_timeout": 12.0}


@pytest.fixture(scope="module")
def kafka(embedded_kafka: EmbeddedKafka) -> EmbeddedKafka:
    """A broker with the topics of the programs."""
    embedded_kafka.create_topic("orders")
    embedded_kafka.create_topic("avro-orders")
    embedded_kafka.create_topic("payments")
    embedded_kafka.create_topic("shipments", partitions=2)
    embedded_kafka.create_topic("shipments-dead")
    return embedded_kafka


def test_the_first_kafka_consumer(kafka: EmbeddedKafka, capsys: pytest.CaptureFixture[str]) -> None:
    """Its second consumer begins at the stored position and skips the records in the offset map
    behind it.
    """
    asyncio.run(load("first_kafka_consumer").main(kafka.bootstrap))
    assert capsys.readouterr().out == printed_on("tutorial/a-first-consumer.md")[-1]


def test_payments_reach_postgresql(
    kafka: EmbeddedKafka, embedded_postgres: EmbeddedPostgres, capsys: pytest.CaptureFixture[str]
) -> None:
    """Invalid payments and those refused by the table become dead letters; the others are
    stored.
    """
    asyncio.run(load("kafka_to_postgres").main(kafka.bootstrap, embedded_postgres.dsn))
    assert capsys.readouterr().out == printed_on("how-to/source-into-postgresql.md")[0]


def test_orders_reach_a_topic(kafka: EmbeddedKafka, capsys: pytest.CaptureFixture[str]) -> None:
    asyncio.run(load("orders_to_kafka").main(kafka.bootstrap))
    assert capsys.readouterr().out == printed_on("how-to/write-to-kafka.md")[0]


def test_orders_in_avro(
    kafka: EmbeddedKafka, embedded_registry: EmbeddedRegistry, capsys: pytest.CaptureFixture[str]
) -> None:
    asyncio.run(load("avro_topics").main(kafka.bootstrap, embedded_registry.url))
    assert [capsys.readouterr().out] == printed_on("how-to/use-a-schema-registry.md")


async def test_positions_are_stored_on_demand(kafka: EmbeddedKafka, real_clock: LoopClock) -> None:
    async with AIOKafkaProducer(bootstrap_servers=kafka.bootstrap) as producer:
        await producer.send_and_wait("orders", b"4711", headers=[("last-of-day", b"")])
    handled = await load("kafka_sources").store_by_hand(kafka.bootstrap)
    admin: Any = AIOKafkaAdminClient(bootstrap_servers=kafka.bootstrap)
    await admin.start()
    (stored,) = (await admin.list_consumer_group_offsets("by-hand")).values()
    await admin.close()
    assert stored.offset == handled > 0


def test_the_sources_of_the_page_can_be_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """Passwords are shown neither by the source nor by its error."""
    module = load("kafka_sources")
    assert len(module.what_to_read("kafka:9092")) == 3
    module.where_to_begin("kafka:9092")
    monkeypatch.setenv("KAFKA_PASSWORD", "hunter2")
    assert "hunter2" not in repr(module.how_to_log_in("kafka:9092"))
    with pytest.raises(ConfigError) as refused:
        KafkaAccess("kafka:9092", sasl_password="hunter2")
    assert "hunter2" not in str(refused.value)


def test_a_drain_has_to_fit_into_a_rebalance() -> None:
    source = KafkaSource("orders", bootstrap="kafka:9092", group="billing")
    with pytest.raises(ConfigError) as refused:
        Consumer(source, drain=60.0)
    assert f"ConfigError: {refused.value}\n" in printed_on("explanation/order.md")


# -- the reasons of the table ----------------------------------------------------------------------


class Heard(logging.Handler):
    """Waits for a reason in the log."""

    def __init__(self, group: str) -> None:
        super().__init__()
        self._group = group
        self.told = asyncio.Event()

    def emit(self, record: logging.LogRecord) -> None:
        if record.getMessage().startswith(f"{self._group}: "):
            self.told.set()


class Joined(ConsumerRebalanceListener):  # type: ignore[misc]  # it comes without types for mypy
    """Waits until a member has its partitions."""

    def __init__(self) -> None:
        self.has_partitions = asyncio.Event()

    def on_partitions_revoked(self, revoked: object) -> None:
        """See `ConsumerRebalanceListener`."""

    def on_partitions_assigned(self, assigned: object) -> None:
        """See `ConsumerRebalanceListener`."""
        self.has_partitions.set()


@contextlib.asynccontextmanager
async def group_of_another_protocol(kafka: EmbeddedKafka, group: str) -> AsyncIterator[None]:
    client: Any = AIOKafkaConsumer(
        bootstrap_servers=kafka.bootstrap,
        group_id=group,
        partition_assignment_strategy=(RangePartitionAssignor,),
    )
    joined = Joined()
    client.subscribe(["orders"], listener=joined)
    async with client:
        await joined.has_partitions.wait()
        yield


async def explained(kafka: EmbeddedKafka, *topics: str, group: str, **options: Any) -> str:
    """The source's trouble in `explain()`, with the names on the page."""
    bootstrap = options.pop("bootstrap", kafka.bootstrap)
    source = KafkaSource(
        *topics, group=group, **kafka_args(KafkaSource, bootstrap, **{**TIMES, **options})
    )
    logger, heard = logging.getLogger("sluicegate.kafka"), Heard(group)
    logger.addHandler(heard)
    try:
        async with Consumer(source, name="billing") as consumer:
            running = asyncio.ensure_future(consumer.run(lambda message: None))
            async with asyncio.timeout(120):
                await heard.told.wait()
            explanation, is_ready = str(consumer.explain()), consumer.ready
            consumer.stop()
            await running
    finally:
        logger.removeHandler(heard)
    assert not is_ready
    found = re.search(r"source trouble \((.*)\), until", explanation)
    assert found is not None, explanation
    return found[1].replace(bootstrap, "127.0.0.1:9092").replace(group, "billing")


async def test_explain_says_what_the_page_says(kafka: EmbeddedKafka, real_clock: LoopClock) -> None:
    """consumer/C:N5, consumer/C:B4: an unavailable broker, a missing topic, another protocol, a
    missing position, and a timeout that the broker refuses.
    """
    nowhere = f"127.0.0.1:{free_port()}"
    async with group_of_another_protocol(kafka, "why-3"):
        reasons = await asyncio.gather(
            explained(kafka, "orders", group="why-1", bootstrap=nowhere),
            explained(kafka, "no-such-topic", group="why-2"),
            explained(kafka, "orders", group="why-3"),
            explained(kafka, "orders", group="why-4", start="committed"),
            explained(kafka, "orders", group="why-5", session_timeout=0.5),
            explained(kafka, group="why-6", pattern="orders-[a-z]+$"),
        )
    table = (DOCS / PAGE).read_text()
    for reason in reasons:
        assert f"| `{reason.replace('no-such-topic', 'orders')}` |" in table


# -- the service -----------------------------------------------------------------------------------


def started(
    program: str, *arguments: str, **env: str
) -> contextlib.AbstractAsyncContextManager[asyncio.subprocess.Process]:
    return child(
        sys.executable,
        str(EXAMPLES / program),
        *arguments,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env={**os.environ, "PROBE_PORT": "0", **env},
    )


async def line(process: asyncio.subprocess.Process, pattern: str) -> re.Match[str]:
    """Read up to a line with this pattern."""
    assert process.stdout is not None
    lines: list[str] = []
    async for read in process.stdout:
        lines.append(read.decode().rstrip())
        if found := re.search(pattern, lines[-1]):
            return found
    raise AssertionError("\n".join(lines[-20:]))


async def ended(process: asyncio.subprocess.Process, number: int) -> int:
    """Send a signal; return the number of messages in the report."""
    process.send_signal(number)
    found = await line(process, r"drained in .*: (\d+) messages? acknowledged")
    assert process.stdout is not None
    await process.stdout.read()
    assert await process.wait() in {0, 128 + number}
    return int(found[1])


@pytest.mark.long
@pytest.mark.timeout(600)
async def test_the_service_is_stopped_and_started(real_clock: LoopClock) -> None:
    """Ctrl-C, a crash of the broker, and a restart: the sum is correct."""
    async with asyncio.timeout(500), contextlib.AsyncExitStack() as stack:
        broker = await stack.enter_async_context(started("a_kafka.py", "orders"))
        env = {"KAFKA": (await line(broker, r"export KAFKA=(\S+)"))[1]}
        consumer = await stack.enter_async_context(started("apps/kafka_consumer.py", **env))
        await line(consumer, "partitions assigned")
        placing = await stack.enter_async_context(started("place_orders.py", "200", **env))
        await line(consumer, "billed")  # a customer's orders take a second, one after the other
        first = await ended(consumer, signal.SIGINT)
        await line(placing, "200 orders placed")
        assert await placing.wait() == 0
        broker.send_signal(signal.SIGHUP)
        await line(broker, "up again")
        again = await stack.enter_async_context(started("apps/kafka_consumer.py", **env))
        for _ in range(200 - first):
            await line(again, "billed")
        assert 0 < first < 200
        assert first + await ended(again, signal.SIGTERM) == 200
        broker.send_signal(signal.SIGTERM)
        assert await broker.wait() == 0
