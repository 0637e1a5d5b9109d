"""A broker seen from outside: its content according to its own answers."""

from __future__ import annotations

from contextlib import asynccontextmanager
from itertools import count
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka import TopicPartition as ClientPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic, RecordsToDelete
from aiokafka.errors import for_code
from aiokafka.protocol.group import LeaveGroupRequest
from aiokafka.record import default_records
from aiokafka.structs import OffsetAndMetadata

from sluicegate.consumer import Position, TopicPartition

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from sluicegate.kafka import KafkaSource
    from sluicegate.testing import EmbeddedKafka

NUMBERS = count()
GZIP = 1


def new_name(kind: str = "t") -> str:
    """A name that no topic and no group has."""
    return f"{kind}-{next(NUMBERS)}-{uuid4().hex[:6]}"


@asynccontextmanager
async def admin_of(broker: EmbeddedKafka) -> AsyncIterator[Any]:
    """An admin client of this broker."""
    admin: Any = AIOKafkaAdminClient(bootstrap_servers=broker.bootstrap)
    await admin.start()
    try:
        yield admin
    finally:
        await admin.close()


# -- topics ----------------------------------------------------------------------------------------


async def new_topic(
    broker: EmbeddedKafka,
    partitions: int = 1,
    *,
    name: str | None = None,
    settings: Mapping[str, str] | None = None,
) -> str:
    """Create a topic that clients can see; return its name."""
    topic = name or new_name()
    async with admin_of(broker) as admin:
        answer = await admin.create_topics(
            [NewTopic(topic, partitions, broker.replicas, topic_configs=dict(settings or {}))]
        )
    for _, code, *told in answer.topic_errors:
        if code:
            raise for_code(code)(f"{topic}: {told}")
    async with producer_of(broker) as producer:
        await producer.partitions_for(topic)  # the broker is informed after the controller
    return topic


async def delete_topic(broker: EmbeddedKafka, topic: str) -> None:
    """Delete a topic; return once the broker no longer knows it."""
    async with admin_of(broker) as admin:
        await admin.delete_topics([topic])
        while topic in await admin.list_topics():
            pass  # each is a request to the broker


@asynccontextmanager
async def producer_of(broker: EmbeddedKafka, **options: Any) -> AsyncIterator[Any]:
    """A producer of this broker."""
    producer: Any = AIOKafkaProducer(bootstrap_servers=broker.bootstrap, **options)
    async with producer:
        yield producer


async def produce(
    broker: EmbeddedKafka,
    topic: str,
    *entries: tuple[bytes | None, bytes | None],
    partition: int = 0,
    timestamp_ms: int | None = None,
) -> list[int]:
    """Append records with these keys and values; return their offsets once they are readable."""
    async with producer_of(broker, acks="all") as producer:
        sent = [
            await producer.send(
                topic, value, key=key, partition=partition, timestamp_ms=timestamp_ms
            )
            for key, value in entries
        ]
        return [(await each).offset for each in sent]


async def produce_undecodable(
    broker: EmbeddedKafka,
    topic: str,
    *entries: tuple[bytes, bytes | None, bool],
    partition: int = 0,
    **options: Any,
) -> None:
    """Append records in one batch, as a client in another language does.

    Each has a key, a value, and whether the name of its header is not UTF-8.
    """
    async with producer_of(broker, acks="all", **options) as producer:
        await producer.partitions_for(topic)
        batch = producer.create_batch()
        builder: Any = default_records._DefaultRecordBatchBuilderPy(
            2, GZIP, is_transactional=0, producer_id=-1, producer_epoch=-1, base_sequence=0,
            batch_size=1 << 20,
        )  # fmt: skip
        batch._builder = builder
        for key, value, is_bad in entries:
            name = "ZQZQ" if is_bad else "good"
            batch.append(key=key, value=value, timestamp=None, headers=[(name, b"v")])
        builder._buffer[:] = builder._buffer.replace(b"ZQZQ", b"\xff\xfe\xff\xfe")
        batch.close()
        await (await producer.send_batch(batch, topic, partition=partition))


async def fill(
    broker: EmbeddedKafka, topic: str, count: int, *, partition: int = 0, keys: int = 5
) -> None:
    """Append records with the keys `k0`, `k1`, ... in turn, and their index as the value."""
    entries = [(b"k%d" % (at % keys), b"%d" % at) for at in range(count)]
    await produce(broker, topic, *entries, partition=partition)


async def transact(
    broker: EmbeddedKafka,
    topic: str,
    *entries: tuple[bytes | None, bytes | None],
    partition: int = 0,
    commit: bool = True,
) -> None:
    """Append records in a transaction with its marker, which uses one more offset."""
    name = new_name("transaction")
    async with producer_of(broker, transactional_id=name) as producer:
        await producer.begin_transaction()
        manager = producer._txn_manager
        manager.maybe_add_partition_to_txn(ClientPartition(topic, partition))  # also if empty
        for key, value in entries:
            await producer.send(topic, value, key=key, partition=partition)
        await (producer.commit_transaction() if commit else producer.abort_transaction())
    async with producer_of(broker, transactional_id=name):
        pass  # it starts once the marker is written; the commit was answered before


async def leave_hole(broker: EmbeddedKafka, topic: str, partition: int = 0) -> None:
    """Use up an offset without a record, through the marker of a transaction."""
    await transact(broker, topic, partition=partition)


async def delete_records(
    broker: EmbeddedKafka, topic: str, before: int, *, partition: int = 0
) -> None:
    """Delete the records before this offset, as retention does."""
    async with admin_of(broker) as admin:
        await admin.delete_records(
            {ClientPartition(topic, partition): RecordsToDelete(before_offset=before)}
        )


async def end_of(broker: EmbeddedKafka, topic: str, partition: int = 0) -> int:
    """The offset after the last record."""
    key = ClientPartition(topic, partition)
    consumer: Any = AIOKafkaConsumer(bootstrap_servers=broker.bootstrap)
    async with consumer:
        end: int = (await consumer.end_offsets([key]))[key]
        return end


# -- groups ----------------------------------------------------------------------------------------


async def make_groups_ready(broker: EmbeddedKafka) -> None:
    """Make a new broker create its group topic, which it does for the first group."""
    first = TopicPartition(await new_topic(broker), 0)
    await store(broker, new_name("first"), {first: Position(0)})


async def stored(broker: EmbeddedKafka, group: str) -> dict[TopicPartition, Position]:
    """The positions and maps that the broker has stored for a group."""
    async with admin_of(broker) as admin:
        found = await admin.list_consumer_group_offsets(group)
    return {
        TopicPartition(*key): Position(at.offset, at.metadata or "") for key, at in found.items()
    }


async def store(
    broker: EmbeddedKafka, group: str, positions: Mapping[TopicPartition, Position]
) -> None:
    """Store positions and maps for a group without members, as another client could."""
    consumer: Any = AIOKafkaConsumer(
        bootstrap_servers=broker.bootstrap, group_id=group, enable_auto_commit=False
    )
    async with consumer:
        keys = {ClientPartition(*partition): at for partition, at in positions.items()}
        consumer.assign(list(keys))
        await consumer.commit({key: OffsetAndMetadata(*at) for key, at in keys.items()})


async def members(broker: EmbeddedKafka, group: str) -> list[str]:
    """The ids of a group's members."""
    async with admin_of(broker) as admin:
        (answer,) = await admin.describe_consumer_groups([group])
    return [member[0] for _, _, _, _, _, found, *_ in answer.groups for member in found]


async def remove_member(broker: EmbeddedKafka, group: str, client: str) -> None:
    """Remove a client's member from its group, as a broker does that misses heartbeats."""
    (member,) = [each for each in await members(broker, group) if each.startswith(client)]
    async with admin_of(broker) as admin:
        coordinator = await admin.find_coordinator(group)
        answer = await admin._send_request(LeaveGroupRequest(group, member), coordinator)
    if answer.error_code:
        raise for_code(answer.error_code)(f"{group}: {member}")


async def lose(broker: EmbeddedKafka, group: str, source: KafkaSource, client: str) -> None:
    """Remove the member of a source from its group, and make the source notice it at once."""
    await remove_member(broker, group, client)
    sessions: Any = source._sessions
    await sessions._session._client._coordinator._do_heartbeat()  # due within its interval
