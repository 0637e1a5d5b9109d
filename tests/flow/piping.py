"""Pipes from a log in memory into a destination that records what was applied."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sluicegate import Batcher, Capabilities, Limits, PermanentError, flow
from sluicegate.consumer import MemoryLog, MemorySource, Record, TopicPartition, UndecodableRecord

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from sluicegate import Batch, WriteResult
    from sluicegate.testing import FakeClock

P0 = TopicPartition("t", 0)
P1 = TopicPartition("t", 1)


def records(
    keys: Iterable[object],
    partition: int = 0,
    first: int = 0,
    undecodable: Collection[int] = (),
) -> list[Record]:
    """One record per key, with consecutive offsets and the offset as its value."""
    return [
        Record("t", partition, offset, key, b"%d" % offset)
        if offset not in undecodable
        else UndecodableRecord("t", partition, offset, key, b"raw", error=ValueError())
        for offset, key in enumerate(keys, first)
    ]


class Destination:
    """A sink that applies rows, fails as a test prescribes, and records what it has applied."""

    def __init__(self, *, prefix_safe: bool = True) -> None:
        self.capabilities = Capabilities(key_prefix_safe=prefix_safe)
        self.applied: list[Any] = []
        self.writes: list[list[Any]] = []
        self.before: Callable[[Batch[Any]], Any] | None = None
        """Called and awaited before any item of a batch is applied."""

    async def write(self, batch: Batch[Any]) -> WriteResult | None:
        """Apply a batch."""
        self.writes.append(list(batch))
        if self.before is not None:
            await self.before(batch)
        self.applied += batch
        return None

    @property
    def offsets(self) -> list[int]:
        """The offsets of the applied records, in order."""
        return [row.offset for row in self.applied]


def key_of(row: Record) -> object:
    """The key of a row that is the record itself."""
    return row.key


def piped(
    log: MemoryLog, sink: Any, clock: FakeClock, *, ends: bool = True, **options: Any
) -> flow.Pipe:
    """A pipe from a log into a sink, keyed by the record's key unless the options specify a key."""
    batcher = options.pop("batcher", None) or Batcher(
        sink,
        key=options.pop("key", key_of),
        limits=options.pop("limits", Limits(max_items=4, max_delay=0.1, workers=2)),
        clock=clock,
    )
    return flow.pipe(MemorySource(log, ends=ends, clock=clock), batcher, **options)


async def refuse(batch: Batch[Any]) -> None:
    """Refuse a batch permanently."""
    raise PermanentError("refused")
