"""Records with a header name that is not UTF-8, which clients in other languages can send."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from tests.kafka.source.kafka_help import (
    new_name,
    new_topic,
    produce_undecodable,
    producer_of,
    stored,
)

from sluicegate import Consumer
from sluicegate.consumer import Poison
from sluicegate.kafka import ConfluentKafkaSource, KafkaSource
from sluicegate.sinks import MemorySink

if TYPE_CHECKING:
    from sluicegate import Message
    from sluicegate.testing import EmbeddedKafka

COUNT = 300
BAD = {0, 120, 121, 299}


SOURCES: dict[Any, dict[str, Any]] = {
    KafkaSource: {"client": {"isolation_level": "read_committed"}},
    ConfluentKafkaSource: {},
}
"""Each class, with the options for reading committed records only."""


@pytest.mark.parametrize("source_type", SOURCES)
@pytest.mark.usefixtures("real_clock")
async def test_its_neighbours_in_a_batch_are_handled_once_and_in_order(
    broker: EmbeddedKafka, source_type: Any
) -> None:
    """O-T18: in a compressed batch, between transactions, and with small fetches."""
    topic = await new_topic(broker)
    entries = [(b"k%d" % (at % 7), b"%d" % at, at in BAD) for at in range(COUNT)]
    async with producer_of(broker, acks="all") as producer:
        await producer.send_and_wait(topic, b"before", key=b"k0")
    async with producer_of(broker, transactional_id=new_name("id")) as producer:
        await producer.begin_transaction()
        first = (await producer.send_and_wait(topic, b"aborted", key=b"k0")).offset + 2
        await producer.abort_transaction()
    await produce_undecodable(broker, topic, *entries)
    async with producer_of(broker, acks="all") as producer:
        await producer.send_and_wait(topic, b"after", key=b"k0")
    read: dict[object, list[bytes]] = {}
    letters = MemorySink[Any]()
    group = new_name("group")
    source = source_type(topic, bootstrap=broker.bootstrap, group=group, **SOURCES[source_type])
    async with Consumer(
        source, drain=1.0, poison=Poison("skip", dead_letters=letters), in_flight=60
    ) as consumer:

        async def handle(message: Message) -> None:
            read.setdefault(message.key, []).append(message.value)
            if sum(map(len, read.values())) == COUNT - len(BAD) + 2:
                consumer.stop()

        await consumer.run(handle)
    values: dict[object, list[bytes]] = {b"k0": [b"before"]}
    for key, value, is_bad in entries:
        if not is_bad:
            values.setdefault(key, []).append(value)
    values[b"k0"].append(b"after")
    assert read == values
    items = [letter.item for letter in letters.items]
    assert [(item["offset"] - first, item["key"], item["value"]) for item in items] == [
        (at, b"k%d" % (at % 7), b"%d" % at) for at in sorted(BAD)
    ]
    assert {letter.cause_type for letter in letters.items} == {"UnicodeDecodeError"}
    ((position, _),) = (await stored(broker, group)).values()
    assert position == first + COUNT + 1
