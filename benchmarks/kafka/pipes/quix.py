"""Quix Streams with its sink for PostgreSQL, in a process with its own environment."""

from __future__ import annotations

import importlib
import tempfile
from typing import TYPE_CHECKING, Any

from ...harness import name_of
from ...workloads import Workload
from .runs import HELD_BACK, Run

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ...stopwatch import TimedTurn, Took

QUIX = "Quix Streams, PostgreSQLSink"
PACKAGE = "quixstreams[postgresql]"
ITEMS = 100_000


def move(run: Run, dsn: str, table: str, size: int) -> Took:
    """Move all records of a run, with a commit and a write of each partition's rows after every
    `size` records. Raises `AssertionError` unless the group has committed all records.
    """
    quix: Any = importlib.import_module("quixstreams")
    models: Any = importlib.import_module("quixstreams.models")
    sinks: Any = importlib.import_module("quixstreams.sinks.community.postgresql")
    extensions: Any = importlib.import_module("psycopg2.extensions")
    with tempfile.TemporaryDirectory() as state:
        app = quix.Application(
            broker_address=run.bootstrap,
            consumer_group=run.group,
            auto_offset_reset="earliest",
            commit_every=size,
            consumer_extra_config={"fetch.wait.max.ms": HELD_BACK},
            loglevel="ERROR",
            state_dir=state,
        )
        topic = app.topic(
            run.topic, value_deserializer=models.JSONDeserializer(loads=run.decode_value)
        )
        sink = sinks.PostgreSQLSink(
            **extensions.parse_dsn(dsn),
            table_name=table,
            schema_auto_update=False,
            include_metadata=False,
        )
        app.dataframe(topic).sink(sink)
        app.run(count=run.count, collect=False)
    run.store(run.count)
    took = run.read()
    run.check_committed(_committed(run))
    return took


def _committed(run: Run) -> int:
    """Return the sum of the group's positions."""
    kafka: Any = importlib.import_module("confluent_kafka")
    client = kafka.Consumer({"bootstrap.servers": run.bootstrap, "group.id": run.group})
    try:
        partitions = client.list_topics(run.topic).topics[run.topic].partitions
        places = [kafka.TopicPartition(run.topic, partition) for partition in partitions]
        return sum(max(0, each.offset) for each in client.committed(places))
    finally:
        client.close()


def workloads(
    bootstrap: str, topic: str, dsn: str, table: str, sizes: Sequence[int]
) -> dict[str, Workload]:
    """Return the workloads of a topic and a table, by the records between two commits."""

    def prepared(size: int) -> Callable[[range], TimedTurn]:
        return lambda items: lambda: move(Run(bootstrap, topic, len(items)), dsn, table, size)

    names = {size: name_of(QUIX, size) for size in sizes}
    return {name: Workload(name, ITEMS, prepared(size), ours=False) for size, name in names.items()}
