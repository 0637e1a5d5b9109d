"""A consumer over a log in memory, for tests of handlers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from sluicegate import Backoff, Consumer, RetryPolicy
from sluicegate.consumer import MemoryLog, MemorySource, Record

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sluicegate.consumer import DrainReport
    from sluicegate.testing import FakeClock

PROMPT = RetryPolicy(
    attempts=2, unlisted_attempts=2, backoff=Backoff(base=0.1, longest=0.1, jitter="none")
)
"""Two attempts, 0.1 s apart."""


def records(*keys_and_values: tuple[Any, Any], **fields: Any) -> list[Record]:
    """Records of one partition, with offsets from 0."""
    return [
        Record("orders", 0, offset, key, value, **fields)
        for offset, (key, value) in enumerate(keys_and_values)
    ]


class Ran(NamedTuple):
    """A consumer after it has run to the end of its source."""

    report: DrainReport
    log: MemoryLog

    @property
    def position(self) -> int:
        """The stored position of the only partition."""
        (partition,) = self.log.records
        return self.log.start(partition).offset


async def consume_batches(
    clock: FakeClock, given: Sequence[Record], handler: Any, size: int, **options: Any
) -> Ran:
    """As `consume`, in batches of up to `size` messages."""
    log = MemoryLog(given)
    options = {"retry": PROMPT, "poison": "skip", **options}
    source = MemorySource(log, ends=True, clock=clock)
    consumer = Consumer(source, clock=clock, **options)
    return Ran(await consumer.run_batch(handler, size=size), log)


async def consume(clock: FakeClock, given: Sequence[Record], handler: Any, **options: Any) -> Ran:
    """Run a handler until all these records are settled; poison is skipped."""
    log = MemoryLog(given)
    options = {"retry": PROMPT, "poison": "skip", **options}
    source = MemorySource(log, ends=True, clock=clock)
    report = await Consumer(source, clock=clock, **options).run(handler)
    return Ran(report, log)
