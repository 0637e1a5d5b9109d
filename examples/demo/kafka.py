"""The demo's scene on Kafka: `KafkaSink` and `KafkaSource` with a topic between them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sluicegate import Batcher, Limits, Retry, stack
from sluicegate.kafka import KafkaSink
from sluicegate.testing import embedded_kafka

from .carried import Carrier
from .legs import as_value, tailnum_of

if TYPE_CHECKING:
    from contextlib import ExitStack

    from .legs import Leg

FLIGHTS = 60_000
PARTITIONS = 6
TOPIC = "flights"
_SETTINGS = {"group.min.session.timeout.ms": "1000"}


def _start(opened: ExitStack) -> str:
    broker = opened.enter_context(embedded_kafka(_SETTINGS))
    broker.create_topic(TOPIC, partitions=PARTITIONS)
    return broker.bootstrap


def _producer(bootstrap: str) -> Batcher[Leg]:
    sink = KafkaSink(TOPIC, bootstrap=bootstrap, key="tailnum", value=as_value)
    return Batcher(stack(sink, Retry()), key=tailnum_of, name="producer", limits=Limits(workers=2))


CARRIER = Carrier(
    broker="kafka",
    name="Kafka",
    stream="a topic of Kafka",
    topic=TOPIC,
    flights=FLIGHTS,
    start=_start,
    producer=_producer,
)
