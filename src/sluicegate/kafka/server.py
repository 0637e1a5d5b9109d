"""A real Apache Kafka for tests from its jars, one node or several (each broker and controller);
also runs as root.

`SLUICEGATE_KAFKA_HOME` names an unpacked Kafka, 4.0 or newer, whose jars are used instead.
`SLUICEGATE_KAFKA_BOOTSTRAP` names a running broker, which is used as it is: nothing is started, and
the broker can be neither stopped nor killed here.

With several nodes every topic, internal ones included, has up to three replicas, and a write with
`acks=all` needs two of them. A partition whose leader is killed or frozen has a new one after the
broker's session, 2 s; if that node led the controllers too, about 3 s later.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from .._core import checks
from .._core.extras import missing
from .._core.public import publish
from ..testing.servers.java import JavaServer
from ..testing.servers.program import EmbeddedServer, free_port
from ..testing.servers.require import EmbeddedUnavailable

if TYPE_CHECKING:
    from collections.abc import Coroutine, Generator, Mapping, Sequence

T = TypeVar("T")

_REPLICAS = 3


class EmbeddedKafka(EmbeddedServer):
    """Kafka nodes on loopback, with their own data and no security.

    Created by `embedded_kafka`. `kill` ends it at once, as a crash would; `start` or `restart`
    start it again on the same data and port. All methods block, for seconds: call them through
    `asyncio.to_thread` in a program with other work. Not thread-safe. Writing to a topic does not
    create it, so a misspelt topic is an error. Records are kept, however old their timestamps are,
    unless the topic's own settings limit that. A broker that is not ours cannot be started, ended or
    frozen: that raises `EmbeddedUnavailable`.
    """

    def __init__(self, settings: Mapping[str, str], heap: str, brokers: int = 1) -> None:
        outside = os.environ.get("SLUICEGATE_KAFKA_BOOTSTRAP")
        self._ports = [free_port() for _ in range(brokers)]
        self._own = None if outside else _nodes(self._ports, settings, heap)
        self.replicas = 1 if outside else min(brokers, _REPLICAS)
        """The replication factor of topics."""
        self.bootstrap = outside or ",".join(f"127.0.0.1:{port}" for port in self._ports)
        """The addresses, `host:port`, separated by commas. Stay the same across restarts."""

    @property
    def is_ours(self) -> bool:
        """Whether it was started here, and so can be killed here."""
        return self._own is not None

    @property
    def pid(self) -> int | None:
        """The first node's process id; `None` while it is down, and for an external broker."""
        return None if self._own is None else self._own[0].pid

    def create_topic(
        self, name: str, *, partitions: int = 1, settings: Mapping[str, str] | None = None
    ) -> None:
        """Create a topic with as many replicas as `replicas` says; return when clients can see it.

        Needs `aiokafka`.

        Args:
            name: must not exist yet.
            partitions: their number.
            settings: the topic's own settings by name, none by default, such as `{"cleanup.policy":
                "compact"}`.

        Raises:
            aiokafka.errors.BrokerResponseError: the broker refused it, with
                `TopicAlreadyExistsError` for example.
        """
        _run(_create_topic(self.bootstrap, name, partitions, self.replicas, settings or {}))

    def close(self) -> None:
        """Kill the server and remove its data, unless the broker is external. Idempotent."""
        if self._own is not None:
            super().close()

    def _programs(self) -> Sequence[JavaServer]:
        if self._own is None:
            raise EmbeddedUnavailable(
                "SLUICEGATE_KAFKA_BOOTSTRAP names an external broker, which cannot be started, "
                "stopped, killed or frozen here"
            )
        return self._own

    def __repr__(self) -> str:
        return f"EmbeddedKafka(bootstrap={self.bootstrap!r}, pid={self.pid})"


def _nodes(ports: Sequence[int], settings: Mapping[str, str], heap: str) -> list[JavaServer]:
    home = os.environ.get("SLUICEGATE_KAFKA_HOME")
    controllers = {number: free_port() for number, _ in enumerate(ports, 1)}
    voters = (f"{number}@127.0.0.1:{port}" for number, port in controllers.items())
    replicas = min(len(ports), _REPLICAS)
    in_sync = str(min(replicas, 2))
    ours = {
        "process.roles": "broker,controller",
        "controller.listener.names": "CONTROLLER",
        "controller.quorum.voters": ",".join(voters),
        # otherwise, records with old timestamps would be deleted within five minutes
        "log.retention.ms": "-1",
        # until then the controller considers a killed broker alive, and admits no other one
        "broker.session.timeout.ms": "2000",
        "broker.heartbeat.interval.ms": "200",
        "auto.create.topics.enable": "false",
        "group.initial.rebalance.delay.ms": "0",
        "min.insync.replicas": in_sync,
        "offsets.topic.num.partitions": "1",
        "offsets.topic.replication.factor": str(replicas),
        "transaction.state.log.num.partitions": "1",
        "transaction.state.log.replication.factor": str(replicas),
        "transaction.state.log.min.isr": in_sync,
        "share.coordinator.state.topic.num.partitions": "1",
        "share.coordinator.state.topic.replication.factor": str(replicas),
        "share.coordinator.state.topic.min.isr": in_sync,
    }
    nodes: list[JavaServer] = []
    for (number, controller), port in zip(controllers.items(), ports, strict=True):
        node = JavaServer("Kafka", heap, classpath=Path(home) / "libs" if home else None)
        own = {
            "node.id": str(number),
            "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}",
            "log.dirs": str(node.home / "data"),
        }
        given = {**ours, **own, **settings}
        node.configure([str(node.home), *(f"{name}={value}" for name, value in given.items())])
        nodes.append(node)
    return nodes


def _run(asking: Coroutine[Any, Any, T]) -> T:
    with ThreadPoolExecutor(1) as beside:  # the caller's thread may have a running loop
        return beside.submit(asyncio.run, asking).result()


async def _create_topic(
    bootstrap: str, name: str, partitions: int, replicas: int, settings: Mapping[str, str]
) -> None:
    try:
        from aiokafka import AIOKafkaProducer  # pyright: ignore[reportMissingTypeStubs]
        from aiokafka.admin import AIOKafkaAdminClient, NewTopic  # pyright: ignore[reportMissingTypeStubs]
        from aiokafka.errors import for_code  # pyright: ignore[reportMissingTypeStubs]
    except ImportError as error:
        told = missing("aiokafka", "testing-kafka", "the embedded Kafka")
        raise EmbeddedUnavailable(str(told)) from error
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    try:
        answer: Any = await admin.create_topics(
            [NewTopic(name, partitions, replicas, topic_configs=dict(settings))]
        )
    finally:
        await admin.close()
    for topic, code, *told in answer.topic_errors:
        if code:
            raise for_code(code)(f"{topic}: {told}")
    client: Any = AIOKafkaProducer(bootstrap_servers=bootstrap)
    async with client:
        await client.partitions_for(name)  # the broker gets the topic after the controller


@contextlib.contextmanager
def embedded_kafka(
    settings: Mapping[str, str] | None = None, *, brokers: int = 1, heap: str = "256m"
) -> Generator[EmbeddedKafka, None, None]:
    """Start an Apache Kafka broker on loopback; kill it and remove its data when the context ends.

    Blocks while starting, about four seconds, for three brokers about ten; the first time also
    while Maven fetches its jars (43 MB) into the user's cache folder. If this process ends without
    leaving the context, by SIGTERM, SIGKILL or a crash, server and data are removed too.

    Args:
        settings: broker settings by name, none by default, such as `{"message.max.bytes": "2000"}`.
        brokers: the number of nodes, each of them broker and controller. With three, two have to be
            up, topics have three replicas, and a write with `acks=all` needs two of them.
        heap: the memory of each node, in the form of Java's `-Xmx`.

    Raises:
        EmbeddedUnavailable: Java, Maven or the jars are missing, or the server cannot be started;
            the message gives the reason.
    """
    checks.count("brokers", brokers)
    server = EmbeddedKafka(settings or {}, heap, brokers)
    try:
        if server.is_ours:
            server.start()
        yield server
    finally:
        server.close()


publish("sluicegate.testing", EmbeddedKafka, embedded_kafka)
