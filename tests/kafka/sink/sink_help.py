"""Topics as an independent consumer reads them, and writes to a `KafkaSink`.

White box: a delivery without a batcher, with its details.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

from aiokafka import AIOKafkaConsumer
from aiokafka import TopicPartition as ClientPartition
from tests.kafka.source.proxy_help import Api

from sluicegate import RowBatch, send
from sluicegate._core.delivery.delivery import Delivery
from sluicegate.kafka.sink.records import RecordMetadata

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from tests.kafka.source.proxy_help import Frame

    from sluicegate import ErrorClass, Outcome
    from sluicegate._core.delivery.host import Condition
    from sluicegate.kafka import KafkaSink
    from sluicegate.testing import EmbeddedKafka


class Read(NamedTuple):
    """A record of a topic."""

    at: RecordMetadata
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    timestamp: int

    @property
    def item(self) -> Any:
        """The value, decoded from JSON."""
        return json.loads(self.value or b"null")


async def read(broker: EmbeddedKafka, topic: str) -> list[Read]:
    """Every record of a topic, by partition, in the order of offsets."""
    consumer: Any = AIOKafkaConsumer(
        bootstrap_servers=broker.bootstrap, auto_offset_reset="earliest", fetch_max_wait_ms=10
    )
    async with consumer:
        await consumer._client.force_metadata_update()
        numbers = sorted(await consumer._client._wait_on_metadata(topic))
        partitions = [ClientPartition(topic, number) for number in numbers]
        consumer.assign(partitions)
        ends = await consumer.end_offsets(partitions)
        found: list[Read] = []
        for each in partitions:
            while await consumer.position(each) < ends[each]:
                found += [
                    Read(
                        RecordMetadata(topic, record.partition, record.offset),
                        record.key,
                        record.value,
                        tuple(record.headers),
                        record.timestamp,
                    )
                    for record in (await consumer.getmany(each, timeout_ms=100)).get(each, ())
                ]
        return sorted(found, key=lambda record: record.at)


async def items(broker: EmbeddedKafka, topic: str) -> list[Any]:
    """The values of a topic's records, decoded from JSON."""
    return [each.item for each in await read(broker, topic)]


class Answering:
    """Replaces a broker's responses to records with errors, one after another."""

    def __init__(self, *codes: int) -> None:
        self._codes = [*codes]

    def __call__(self, frame: Frame) -> bytes:
        """The answer, with the next error for its first partition."""
        body = frame.body
        if frame.api != Api.PRODUCE or not self._codes:
            return body
        at = 8 + 2 + int.from_bytes(body[8:10]) + 8  # the number, topics, a name, partitions, one
        code = self._codes.pop(0).to_bytes(2, signed=True)
        return body[:at] + code + (-1).to_bytes(8, signed=True) + body[at + 10 :]


class Books:
    """The outcomes and details of a batch without a batcher."""

    def __init__(self) -> None:
        self.outcomes: dict[int, Outcome] = {}
        self.details: dict[int, RecordMetadata] = {}

    def book_outcome(
        self, indices: Sequence[int], outcome: Outcome, details: Mapping[int, object] | None
    ) -> None:
        """Book the outcomes of items."""
        self.outcomes |= dict.fromkeys(indices, outcome)
        for index, detail in (details or {}).items():
            assert isinstance(detail, RecordMetadata)
            self.details[index] = detail

    def heard(self, errors: Iterable[BaseException]) -> None: ...
    def reported(self, source: object, condition: Condition | None) -> None: ...
    def retrying(self, kind: ErrorClass, items: int, delay: float) -> None: ...
    def throttled(self, until: float) -> None: ...


class Written:
    """A batch and its results. `write` sends the items that have no outcome yet."""

    def __init__(self, items: Iterable[Any], keys: Sequence[object] | None = None) -> None:
        given = [*items]
        self.books = Books()
        delivery = Delivery(len(given), books=self.books, keeps_prefix=keys is not None)
        self.batch: RowBatch[Any] = RowBatch(given, keys=keys, delivery=delivery)

    async def write(self, sink: KafkaSink) -> dict[int, BaseException]:
        """The errors, by index."""
        return await send(sink, self.batch)

    @property
    def delivered(self) -> list[Any]:
        """The items that were delivered, in the batch's order."""
        return [self.batch[index] for index in sorted(self.books.outcomes)]

    def details(self) -> list[RecordMetadata]:
        """The details of every item, in order; each must have some."""
        return [self.books.details[index] for index in range(len(self.batch))]
