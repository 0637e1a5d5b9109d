"""A run from a topic to a destination: its input, its time and its checks."""

from __future__ import annotations

import importlib
import json
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ...stopwatch import Stopwatch
from .actions import row_of

if TYPE_CHECKING:
    from ...destination import Destination, Row
    from ...stopwatch import Took

ARRIVED = "ALTER TABLE actions ADD COLUMN arrived bigint GENERATED ALWAYS AS IDENTITY"
"""The server numbers the rows as they arrive, so that their order can be checked."""
PAST_A_LATER_ONE = """
    SELECT count(*) FROM (
        SELECT arrived < lag(arrived) OVER (PARTITION BY account ORDER BY number) AS is_early
        FROM actions
    ) AS rows WHERE is_early
"""
HELD_BACK = 10
"""Milliseconds for which the broker may delay the response to a fetch, in every way. A fetch of an
exhausted partition delays those of the others, and only a finite topic has such partitions.
"""


@dataclass(slots=True)
class Run:
    """A group that reads the `count` records of a topic."""

    bootstrap: str
    topic: str
    count: int
    group: str = field(default_factory=lambda: uuid.uuid4().hex)
    stored: int = 0
    """Number of rows at the destination."""
    watch: Stopwatch | None = None

    def begin(self) -> None:
        """Start the watch at the first record."""
        if self.watch is None:
            self.watch = Stopwatch()

    def decode(self, record: Any) -> Row:
        """Decode a record to its row."""
        return row_of(self.decode_value(record.value))

    def decode_value(self, value: bytes) -> Any:
        """Decode the value of a record, with the decoder of every way."""
        if self.watch is None:
            self.watch = Stopwatch()
        return json.loads(value)

    def store(self, rows: int) -> bool:
        """Count stored rows; return whether all are stored."""
        self.stored += rows
        return self.stored >= self.count

    def read(self) -> Took:
        """Return the time since the first record. Raises `AssertionError` if records are missing."""
        if self.watch is None or self.stored != self.count:
            raise AssertionError(f"{self.stored} of {self.count} rows were written")
        return self.watch.read()

    async def check_positions(self) -> None:
        """Raise `AssertionError` unless the group's positions are after the last records."""
        aiokafka: Any = importlib.import_module("aiokafka.admin")
        client = aiokafka.AIOKafkaAdminClient(bootstrap_servers=self.bootstrap)
        await client.start()
        try:
            found: dict[Any, Any] = await client.list_consumer_group_offsets(self.group)
        finally:
            await client.close()
        self.check_committed(sum(each.offset for each in found.values()))

    def check_committed(self, committed: int) -> None:
        """Raise `AssertionError` unless this is the number of records."""
        if committed != self.count:
            raise AssertionError(f"{committed} of {self.count} records were committed")


Way = Callable[[Run, "Destination"], Awaitable[None]]


async def timed(way: Way, run: Run, to: Destination) -> Took:
    """Measure the time of a run into an empty table, until everything is closed. Raises
    `AssertionError` unless the table then has all rows, those of each account in the order of the
    topic, and the group has committed all records.
    """
    await to.make_empty(ARRIVED, "CHECKPOINT")
    await way(run, to)
    took = run.read()
    await check_rows(to, run.count)
    await run.check_positions()
    return took


async def check_rows(to: Destination, count: int) -> None:
    """Raise `AssertionError` unless the table has this number of rows, those of each account in the
    order of the topic.
    """
    await to.check(count)
    if late := await to.value(PAST_A_LATER_ONE):
        raise AssertionError(f"{late} rows were written behind a later one of their account")
