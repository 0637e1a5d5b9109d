"""B-T40: `KafkaSink` passes the conformance suite, on a real broker."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, ClassVar

import pytest
from tests.kafka.sink.sink_help import read
from tests.kafka.source.kafka_help import new_topic

from sluicegate.kafka import KafkaSink
from sluicegate.testing.conformance import SinkConformance

if TYPE_CHECKING:
    from sluicegate.testing import EmbeddedKafka


class TestKafkaSink(SinkConformance[dict[str, Any]]):
    """With default arguments: idempotent, one partition."""

    options: ClassVar[dict[str, Any]] = {}
    partitions = 1

    @pytest.fixture(autouse=True)
    def on(self, broker: EmbeddedKafka) -> None:
        self.broker = broker
        self.topic = asyncio.run(new_topic(broker, self.partitions))

    def sink(self) -> KafkaSink:
        return KafkaSink(self.topic, bootstrap=self.broker.bootstrap, **self.options)

    def item(self, number: int) -> dict[str, Any]:
        return {"n": number}

    def bad_item(self, number: int) -> Any:
        return {"n": float("nan")}

    async def stored(self) -> list[dict[str, Any]]:
        return [each.item for each in await read(self.broker, self.topic)]


@pytest.mark.long
class TestKafkaSinkNotIdempotent(TestKafkaSink):
    """Without idempotence: the broker recognizes no repeated batch."""

    options: ClassVar[dict[str, Any]] = {"idempotent": False}


class TestKafkaSinkWithKeys(TestKafkaSink):
    """Several partitions, and compressed batches."""

    options: ClassVar[dict[str, Any]] = {"key": "n", "compression": "zstd"}
    partitions = 3
    ordered = False


class TestKafkaSinkTopics(TestKafkaSink):
    """A topic chosen by a function, and a batch for every one or two records."""

    options: ClassVar[dict[str, Any]] = {"max_batch_bytes": 100}

    def sink(self) -> KafkaSink:
        topic = self.topic
        return KafkaSink(lambda _: topic, bootstrap=self.broker.bootstrap, **self.options)
