"""A transactional flow from Kafka into PostgreSQL in its own process, for tests that kill it,
freeze it or send it signals.

`transaction_child.py '{"bootstrap": ..., "topic": ..., "group": ..., "dsn": ..., "table": ...,
"positions": ..., "letters": ...}'` writes a row per record, with its partition, offset and key, and
a line per dead letter.
"""

from __future__ import annotations

import json
import logging
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import sluicegate
from sluicegate import flow
from sluicegate.consumer import Commits, Poison
from sluicegate.kafka import KafkaSource
from sluicegate.postgres import PostgresAccess, PostgresSink

if TYPE_CHECKING:
    from sluicegate import Batch, Message

COLUMNS = ("part", "at", "key")


@dataclass(frozen=True, kw_only=True)
class Options:
    """What the flow reads and where it writes."""

    bootstrap: str
    topic: str
    group: str
    dsn: str
    table: str
    positions: str
    letters: str
    instance: str | None = None
    drain: float = 4.0
    commit_after: int = 20


def row_of(message: Message) -> tuple[int, int, str]:
    """The row of a record."""
    assert message.key is not None
    return message.partition, message.offset, message.key.decode()


async def main(options: Options) -> None:
    """Run until a signal arrives."""
    source = KafkaSource(
        options.topic,
        bootstrap=options.bootstrap,
        group=options.group,
        instance=options.instance,
        session_timeout=2.0,
        rebalance_timeout=10.0,
    )
    sink = PostgresSink(
        PostgresAccess(
            options.dsn,
            connect_options={"server_settings": {"application_name": options.table}},
        ),
        table=options.table,
        columns=COLUMNS,
        positions=options.positions,
    )

    def bury(batch: Batch[Any]) -> None:
        with Path(options.letters).open("a") as file:
            for letter in batch:
                file.write(f"{letter.item['partition']} {letter.item['offset']}\n")

    report = await flow.transaction(
        source,
        sink,
        row_of,
        name="child",
        commits=Commits(every=0.02, after=options.commit_after),
        drain=options.drain,
        poison=Poison("skip", dead_letters=bury),
    ).run()
    sys.stdout.write(json.dumps({"event": "ended", "complete": report.complete}) + "\n")


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s")
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)
    sluicegate.run(main(Options(**json.loads(sys.argv[1]))))
