"""Kafka as a destination: the cost of a record, compared with common ways to produce."""

from __future__ import annotations

import contextlib
import sys
from functools import partial
from importlib.metadata import version
from typing import TYPE_CHECKING

from ...environments import environment
from ...harness import US_PER_ITEM, Case, CaseUnavailableError, name_of, placed
from ...kafka.producer_workloads import (
    BATCHED,
    BY_HAND,
    CONFLUENT,
    ITEMS,
    LINGERING,
    OURS,
    SEND,
    WAYS,
    WORKS,
    workload_name,
)
from ...kafka.topics import a_broker
from ...stopwatch import Clock
from ...workers import SOURCES, Worker
from .source import take

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ...harness import Contender, Results

PACKAGE = "confluent-kafka"
"""The required peer."""


@contextlib.contextmanager
def prepare(count: int) -> Iterator[Sequence[Contender]]:
    try:
        needed = [f"{each}=={version(each)}" for each in ("aiokafka", "cramjam")]
    except ModuleNotFoundError as missing:
        raise CaseUnavailableError("aiokafka is not installed") from missing
    share = min(1.0, count / ITEMS)
    with (
        a_broker() as broker,
        environment(sys.executable, [*needed, "tenacity"], [PACKAGE]) as made,
        Worker(
            SOURCES,
            executable=made.executable,
            program="kafka.programs.produce",
            arguments=[broker.bootstrap],
        ) as worker,
    ):
        for topic, partitions in {each.topic: each.partitions for each in WORKS.values()}.items():
            broker.create_topic(topic, partitions=partitions)
        yield [
            placed(
                work,
                way,
                partial(take, worker, workload_name(way, work), share),
                ours=way in {OURS, BATCHED},
            )
            for work in WORKS
            for way in WAYS
            if way != CONFLUENT or made.has(PACKAGE)
        ]


def _ratios(results: Results) -> list[str]:
    """Compare the sink with each way, by processor time."""
    found: list[str] = []
    for peer in (SEND, LINGERING, BY_HAND):
        ratios = [
            (work, results.ratio(name_of(work, OURS), name_of(work, peer)))
            for work in results.lines
        ]
        told = "; ".join(
            f"{each.median:.2f} x ({each.least:.2f} to {each.most:.2f}) with {work}"
            for work, each in ratios
        )
        found.append(f"KafkaSink, against {peer}: {told}.")
    return found


CASE = Case(
    name="kafka-sink",
    title="Write batches to a topic of Kafka",
    prepare=prepare,
    items=ITEMS,
    quick_items=500,
    unit=US_PER_ITEM,
    by=Clock.PROCESSOR,
    peers=(),
    along="way",
    is_drawn=False,
    notes=_ratios,
)
