"""Members of groups on librdkafka, and how a broker removes one from its group."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from aiokafka.errors import for_code
from aiokafka.protocol.group import LeaveGroupRequest
from confluent_kafka.admin import AdminClient
from tests.kafka.source import kafka_help
from tests.kafka.source.kafka_help import admin_of

from sluicegate.kafka import ConfluentKafkaSource, KafkaAccess

if TYPE_CHECKING:
    from sluicegate.consumer import Position, TopicPartition
    from sluicegate.testing import EmbeddedKafka

QUICK: dict[str, Any] = {"session_timeout": 1.5, "rebalance_timeout": 40.0, "commit_timeout": 2.0}
"""Timeouts of a source."""
PROTOCOLS = ("cooperative", "consumer")
_LEAVE = -1
"""The epoch of a leaving member."""


def source_of(
    broker: EmbeddedKafka, topic: str, group: str, *, protocol: str = "cooperative", **given: Any
) -> ConfluentKafkaSource:
    """A source with short timeouts."""
    times = QUICK if protocol == "cooperative" else QUICK | {"session_timeout": None}
    to = given.pop("bootstrap", broker.bootstrap)
    access = to if isinstance(to, KafkaAccess) else KafkaAccess(to)
    access = replace(access, client_id=kafka_help.new_name("client"))
    named: dict[str, Any] = {"bootstrap": access, **times, **given}
    return ConfluentKafkaSource(topic, group=group, protocol=protocol, **named)  # type: ignore[arg-type]


async def stored(broker: EmbeddedKafka, group: str) -> dict[TopicPartition, Position]:
    """The positions and maps of a group at the broker. The client ends a map with a NUL."""
    found = await kafka_help.stored(broker, group)
    return {each: at._replace(metadata=at.metadata.rstrip("\0")) for each, at in found.items()}


async def members(broker: EmbeddedKafka, group: str) -> dict[str, str]:
    """The ids of a group's members, by client name."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    asked = admin.describe_consumer_groups([group])[group]
    told = await asyncio.wrap_future(asked)
    return {each.client_id: each.member_id for each in told.members}


async def lose(broker: EmbeddedKafka, group: str, source: ConfluentKafkaSource) -> None:
    """Remove the member of a source from its group; it notices at its next heartbeat."""
    client_id = source._options.access.client_id
    assert client_id is not None
    name = (await members(broker, group))[client_id]
    if source._options.protocol == "consumer":
        await _leave_by_heartbeat(broker, group, name)
        return
    async with admin_of(broker) as admin:
        coordinator = await admin.find_coordinator(group)
        answer = await admin._send_request(LeaveGroupRequest(group, name), coordinator)
    if answer.error_code:
        raise for_code(answer.error_code)(f"{group}: {name}")


async def _leave_by_heartbeat(broker: EmbeddedKafka, group: str, name: str) -> None:
    """Send the heartbeat of a leaving member, which aiokafka does not support."""
    header = (68).to_bytes(2) + (0).to_bytes(2) + (7).to_bytes(4) + _short("test") + b"\0"
    body = _compact(group) + _compact(name) + _LEAVE.to_bytes(4, signed=True)
    body += b"\0\0" + (-1).to_bytes(4, signed=True) + b"\0\0\0\0"
    host, _, port = broker.bootstrap.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        request = header + body
        writer.write(len(request).to_bytes(4) + request)
        answer = await reader.readexactly(int.from_bytes(await reader.readexactly(4)))
    finally:
        writer.close()
    code = int.from_bytes(answer[9:11])
    assert code == 0, f"{group}: {name}: the broker answers {code}"


def _short(text: str) -> bytes:
    return len(text).to_bytes(2) + text.encode()


def _compact(text: str) -> bytes:
    return bytes([len(text) + 1]) + text.encode()
