"""A broker that leads everything is lost in a cluster of three while sinks, sources and flows run.

White box: the folder of a node.
"""

from __future__ import annotations

import asyncio
import shutil
from typing import TYPE_CHECKING

import pytest
from tests.clusters import kafka_leaders
from tests.clusters.kafka_parts import REQUEST, Result, running
from tests.kafka.source.storm_help import run

if TYPE_CHECKING:
    from collections.abc import Callable

    from sluicegate.testing import EmbeddedKafka, EmbeddedPostgres

COORDINATORS = ("__consumer_offsets", "__transaction_state")
AT_LEAST_ONCE = {"aiokafka", "confluent", "pipe"}
IN_TRANSACTIONS = {"transaction", "state"}
ELECTIONS = 5.0
"""Seconds: the broker's session, after that of the controllers."""
BUSY = 10.0
"""Seconds that a busy machine may need besides."""
LONGEST = {False: ELECTIONS + 2 * REQUEST + BUSY, True: ELECTIONS + 5 * REQUEST + BUSY}
"""Seconds: a transaction has up to five requests to nodes that do not answer, one after another."""
pytestmark = pytest.mark.filterwarnings(  # aiokafka may leave a connection to the garbage collector
    "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)


def gather_leaders(kafka: EmbeddedKafka, topic: str) -> int:
    """Move the coordinators and a partition of the topic to one node."""
    node = kafka_leaders.leader_of(kafka, topic)
    for each in COORDINATORS:
        kafka_leaders.move_leader(kafka, each, to=node)
    return node


def kill(kafka: EmbeddedKafka, topic: str) -> Callable[[], None]:
    node = gather_leaders(kafka, topic)
    kafka.kill(node)
    return lambda: kafka.start(node)


def freeze(kafka: EmbeddedKafka, topic: str) -> Callable[[], None]:
    node = gather_leaders(kafka, topic)
    kafka.pause(node)
    return lambda: kafka.resume(node)


def drain(kafka: EmbeddedKafka, topic: str) -> Callable[[], None]:
    node = gather_leaders(kafka, topic)
    kafka.stop(node)
    return lambda: kafka.start(node)


def move(kafka: EmbeddedKafka, topic: str) -> Callable[[], None]:
    gather_leaders(kafka, topic)
    for each in (topic, *COORDINATORS):
        kafka_leaders.move_leader(kafka, each)
    return lambda: None


def move_coordinators(kafka: EmbeddedKafka, topic: str) -> Callable[[], None]:
    """Some of the commits are in progress: there are 60 a second."""
    for each in COORDINATORS * 5:
        kafka_leaders.move_leader(kafka, each)
    return lambda: None


def replace(kafka: EmbeddedKafka, topic: str) -> Callable[[], None]:
    """Replace a node by another one of the same number, which has no data."""
    node = gather_leaders(kafka, topic)
    kafka.stop(node)
    shutil.rmtree(kafka._programs()[node - 1].home / "data")
    kafka.start(node)
    for each in (topic, *COORDINATORS):
        while kafka_leaders.in_sync(kafka, each) != {1, 2, 3}:
            pass  # each is a request to a broker
        kafka_leaders.move_leader(kafka, each, to=node)
    return lambda: None


def kill_controller(kafka: EmbeddedKafka, topic: str) -> Callable[[], None]:
    node = kafka_leaders.kill_controller(kafka)
    return lambda: kafka.start(node)


REPEATED = "coordinators moved 10 times"
REPLACED = "replaced by an empty node"
SEVERAL = (REPEATED, REPLACED)
"""The coordinators move several times, the next time perhaps before the next commit."""
EVENTS = {
    "frozen": freeze,
    "moved": move,
    REPEATED: move_coordinators,
    REPLACED: replace,
    "killed": kill,
    "drained": drain,
    "controller killed": kill_controller,
}
IN_SUITE = ("moved",)
"""The others wait for an election, and most start a node again, which takes seconds."""


async def through(
    event: Callable[[EmbeddedKafka, str], Callable[[], None]], kafka: EmbeddedKafka, dsn: str
) -> list[Result]:
    """Run all parts through an event and its repair."""
    results: list[Result] = []
    async with running(kafka, dsn, results) as parts:
        repair = await asyncio.to_thread(event, kafka, parts.topic)
        await parts.progress()
        await asyncio.to_thread(repair)
        await parts.progress()
    return results


@pytest.mark.parametrize(
    "event",
    [pytest.param(each, marks=[] if each in IN_SUITE else pytest.mark.long) for each in EVENTS],
)
def test_nothing_is_lost_or_out_of_order_and_little_comes_twice(
    kafka: EmbeddedKafka,
    embedded_postgres: EmbeddedPostgres,
    event: str,
) -> None:
    """Nothing at all comes twice at the sink and in transactions."""
    results = run(through(EVENTS[event], kafka, embedded_postgres.dsn), seconds=150)
    for each in results:
        print(event, each)  # noqa: T201  # for the table of the page, with -s
    for each in results:
        assert each.lost == each.out_of_order == 0, each
        assert not each.twice or each.part in AT_LEAST_ONCE, each
        if event not in SEVERAL:
            assert each.stop < LONGEST[each.part in IN_TRANSACTIONS], each
