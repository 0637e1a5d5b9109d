"""State topics, read as by any other client."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any, NamedTuple

from aiokafka import AIOKafkaConsumer
from aiokafka import TopicPartition as ClientPartition
from tests.kafka.source.kafka_help import end_of, stored

from sluicegate.consumer import Position

if TYPE_CHECKING:
    from sluicegate.consumer import TopicPartition
    from sluicegate.testing import EmbeddedKafka


class StoredState(NamedTuple):
    """The committed state of a partition."""

    position: int
    """The position in the last mark; 0 without a mark."""
    state: dict[str, Any]
    marks: list[dict[str, Any]]


async def committed(broker: EmbeddedKafka, topic: str, partition: int = 0) -> list[Any]:
    """The committed records of a partition, up to the first open transaction."""
    key = ClientPartition(topic, partition)
    client: Any = AIOKafkaConsumer(
        bootstrap_servers=broker.bootstrap,
        isolation_level="read_committed",
        auto_offset_reset="earliest",  # by default the client may seek to the end again
    )
    found: list[Any] = []
    async with client:
        client.assign([key])
        end = (await client.end_offsets([key]))[key]
        await client.seek_to_beginning(key)
        while await client.position(key) < end:
            found += (await client.getmany(key, timeout_ms=200)).get(key, [])
    return found


async def all_committed(broker: EmbeddedKafka, topic: str, partition: int = 0) -> list[Any]:
    """The same once no transaction is open: their end markers are written after the commit
    returns.
    """
    async with asyncio.timeout(100):
        while True:
            found = await committed(broker, topic, partition)
            end = await end_of(broker, topic, partition)
            if found and found[-1].offset == end - 2:  # before the end of the last transaction
                return found


async def settled_state(
    broker: EmbeddedKafka, topic: str, group: str, source: TopicPartition
) -> StoredState:
    """The same once the last transaction has ended in both topics; it is committed before that."""
    async with asyncio.timeout(100):
        while True:
            found = await stored_state(broker, topic, source.partition)
            at = (await stored(broker, group)).get(source, Position(0))
            if at.offset == found.position:
                return found


async def stored_state(broker: EmbeddedKafka, topic: str, partition: int = 0) -> StoredState:
    """The state of a partition, read from its topic alone."""
    state: dict[str, Any] = {}
    marks: list[dict[str, Any]] = []
    for record in await committed(broker, topic, partition):
        if record.key.startswith(b"\0"):
            marks.append(json.loads(record.value))
        elif record.value is None:
            state.pop(record.key.decode(), None)
        else:
            state[record.key.decode()] = json.loads(record.value)
    return StoredState(marks[-1]["position"] if marks else 0, state, marks)
