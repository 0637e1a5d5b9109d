"""A consumer with state in its own process, for tests that kill it.

`state_child.py '{"dsn": ..., "table": ..., "positions": ..., "count": ..., "seed": ...}'` reads a
log in memory that is the same in each run; with `"bootstrap"`, `"topic"` and `"group"` it reads
Kafka, and with `"state_topic"` its state is also in Kafka.
"""

from __future__ import annotations

import json
import logging
import sys
from typing import TYPE_CHECKING, Any

from state_counting import Counting, key_of

import sluicegate
from sluicegate import Consumer
from sluicegate.consumer import Commits, MemoryLog, MemorySource, Record
from sluicegate.kafka import KafkaState
from sluicegate.postgres import PostgresState

if TYPE_CHECKING:
    from sluicegate.consumer import Source


def source_of(options: dict[str, Any]) -> Source:
    """The configured source."""
    if "topic" not in options:
        log = [Record("t", 0, at, key_of(at), b"") for at in range(options["count"])]
        return MemorySource(MemoryLog(log), ends=True)
    from sluicegate.kafka import KafkaSource

    return KafkaSource(
        options["topic"],
        bootstrap=options["bootstrap"],
        group=options["group"],
        instance=options.get("instance"),
        session_timeout=2.0,
        rebalance_timeout=10.0,
    )


def state_of(options: dict[str, Any]) -> PostgresState | KafkaState:
    """The configured state."""
    if "state_topic" in options:
        return KafkaState(topic=options["state_topic"], bootstrap=options["bootstrap"])
    return PostgresState(options["dsn"], table=options["table"], positions=options["positions"])


async def main(options: dict[str, Any]) -> None:
    """Run until the end of the log, or until a signal."""
    counting = Counting(options["seed"])
    async with (
        state_of(options) as state,
        Consumer(
            state.attach(source_of(options)),
            ordering="partition",
            commits=Commits(every=0.01),
            drain=4.0,
        ) as consumer,
    ):
        sys.stdout.write(json.dumps({"event": "started"}) + "\n")
        sys.stdout.flush()
        report = await consumer.run_events(
            counting.handle,
            jobs=[counting.jobs],
            interjections=counting.interjections,
            state=state,
        )
    sys.stdout.write(json.dumps({"event": "ended", "complete": report.complete}) + "\n")


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s")
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)
    sluicegate.run(main(json.loads(sys.argv[1])))
