"""Kafka through both of Sluicegate's sources: the cost of a record with aiokafka and librdkafka."""

from __future__ import annotations

import contextlib
from functools import partial
from typing import TYPE_CHECKING

from ...harness import NS_PER_ITEM, Case, name_of, placed
from ...kafka.topics import a_broker, fill
from ...kafka.workloads import CONFLUENT, OURS, TOPIC, workloads
from ...stopwatch import Clock
from .source import ITEMS, KEYS, PARTITIONS, members, take

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ...harness import Contender, Results


@contextlib.contextmanager
def prepare(count: int) -> Iterator[Sequence[Contender]]:
    share = min(1.0, count / ITEMS)
    with (
        a_broker() as broker,
        members(broker.bootstrap, "confluent-kafka", peers=()) as processes,
    ):
        fill(broker, TOPIC, ITEMS, keys=KEYS, partitions=PARTITIONS)
        works = workloads(broker.bootstrap)
        yield [
            placed(
                line,
                name,
                partial(take, worker, name, share),
                ours=name == CONFLUENT,
                items=works[name].count(share),
            )
            for line, (worker, _) in processes.items()
            for name in (OURS, CONFLUENT)
        ]


def _ratios(results: Results) -> list[str]:
    """Format the processor time of the source on aiokafka relative to that on librdkafka."""
    ratios = [
        (line, results.ratio(name_of(line, CONFLUENT), name_of(line, OURS)))
        for line in results.lines
    ]
    told = [
        f"{each.median:.2f} x ({each.least:.2f} to {each.most:.2f}) with {line}"
        for line, each in ratios
    ]
    return [f"Over librdkafka, against over aiokafka: {', '.join(told)}."]


CASE = Case(
    name="kafka-clients",
    title="Consume a topic of Kafka through aiokafka and librdkafka, by Python",
    prepare=prepare,
    items=ITEMS,
    quick_items=500,
    unit=NS_PER_ITEM,
    by=Clock.PROCESSOR,
    peers=(),
    along="work",
    is_drawn=False,
    notes=_ratios,
)
