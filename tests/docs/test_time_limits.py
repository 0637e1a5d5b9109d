"""The page of time limits says what the arguments are."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

from penstock import sinks
from penstock.flow import PostgresState
from penstock.queues import QueueAdmin, QueueMonitor
from penstock.sources.jetstream import JetStreamSource
from penstock.sources.kafka import KafkaSource
from penstock.sources.kafka_confluent import ConfluentKafkaSource
from penstock.sources.postgres_queue import PostgresQueueSource
from penstock.sources.postgres_stream import PostgresStreamSource
from penstock.sources.subscriptions import PostgresAdvisoryLocks, PostgresSubscriptions
from penstock.streams import PostgresParkStore, StreamMonitor, SubscriptionAdmin

PAGE = Path(__file__).parents[2] / "docs/reference/time-limits.md"
OTHERS = (
    ConfluentKafkaSource,
    JetStreamSource,
    KafkaSource,
    PostgresAdvisoryLocks,
    PostgresParkStore,
    PostgresQueueSource,
    PostgresState,
    PostgresStreamSource,
    PostgresSubscriptions,
    QueueAdmin,
    QueueMonitor,
    StreamMonitor,
    SubscriptionAdmin,
)
KINDS = {each.__name__: each for each in OTHERS}
ROW = re.compile(r"^\| `(\w+)` \| [^|]+ \| `(\w+)` \| ([\d.]+) \|$", re.MULTILINE)


def test_every_default_of_the_page_is_that_of_the_argument() -> None:
    rows = ROW.findall(PAGE.read_text())
    assert len(rows) > 10
    for name, argument, default in rows:
        made = KINDS.get(name) or getattr(sinks, name)
        parameter = inspect.signature(made).parameters[argument]
        assert parameter.default == float(default), (name, argument)


def test_every_part_with_a_limit_for_answers_is_on_the_page() -> None:
    rows = {found[:2] for found in ROW.findall(PAGE.read_text())}
    shelf = [getattr(sinks, name) for name in sinks.__all__ if name.startswith("Postgres")]
    for made in (*OTHERS, *shelf):
        if "answer_timeout" in inspect.signature(made).parameters:
            assert (made.__name__, "answer_timeout") in rows
