"""A source over a `MemoryLog`, which gives and takes claims as its test says."""

from __future__ import annotations

import math
from bisect import bisect_left
from contextlib import asynccontextmanager
from operator import attrgetter
from typing import TYPE_CHECKING

from ..._core.clock import LOOP_CLOCK, Signal, wait_until
from ..._core.source import SourceTraits

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Collection, Iterable, Mapping, Sequence

    from ..._core.clock import Clock
    from ..._core.source import (
        ClaimHost,
        Position,
        Record,
        SourceClaim,
        SourceRecord,
        TopicPartition,
    )
    from .log import MemoryLog


_PLAIN = SourceTraits()


class MemorySource:
    """One member of a group that reads a `MemoryLog`.

    Args:
        log: the records and the stored positions.
        ends: whether the source ends when everything has been delivered.
        chunk: the most records of one partition in a fetch.
        clock: the source of time.
    """

    def __init__(
        self,
        log: MemoryLog,
        *,
        ends: bool = False,
        chunk: int = 500,
        clock: Clock = LOOP_CLOCK,
        traits: SourceTraits = _PLAIN,
    ) -> None:
        self.log = log
        self.traits = traits
        self._ends = ends
        self._chunk = chunk
        self._clock = clock
        self._host: ClaimHost | None = None
        self._at: dict[SourceClaim, int] = {}
        self._news = Signal()

    @asynccontextmanager
    async def open(self, host: ClaimHost) -> AsyncGenerator[None]:
        """Claim every partition of the log; at exit, lose them."""
        self._host = host
        self.assign(list(self.log.records))
        try:
            yield
        finally:
            host.ended(list(self._at))
            self._at.clear()
            self._host = None

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Give these partitions to the consumer."""
        assert self._host is not None
        starts = {partition: self.log.start(partition) for partition in partitions}
        for claim in self._host.assigned(starts):
            records = self.log.records[claim.partition]
            start = starts[claim.partition].offset
            self._at[claim] = bisect_left(records, start, key=attrgetter("offset"))
        self._news.fire()

    async def fetch(
        self, claims: Sequence[SourceClaim], most: int
    ) -> Sequence[tuple[SourceClaim, Sequence[SourceRecord]]] | None:
        """Deliver records; suspend until there are some."""
        while True:
            found: list[tuple[SourceClaim, Sequence[SourceRecord]]] = []
            for claim in claims:
                records = self._next(claim, min(most, self._chunk))
                if records:
                    found.append((claim, records))
                    most -= len(records)
            if found:
                return found
            if self._ends and not any(self._left(claim) for claim in self._at):
                return None
            await wait_until(self._clock, math.inf, self._news)

    def _next(self, claim: SourceClaim, most: int) -> Sequence[Record]:
        if claim not in self._at or most <= 0:
            return ()
        at = self._at[claim]
        records = self.log.records[claim.partition][at : at + most]
        self._at[claim] = at + len(records)
        return records

    def _left(self, claim: SourceClaim) -> bool:
        return self._at[claim] < len(self.log.records[claim.partition])

    async def keep_alive(self) -> None:
        """Nothing to keep alive."""

    async def commit(self, positions: Mapping[SourceClaim, Position]) -> Collection[SourceClaim]:
        """Store the positions of claims that are held."""
        await self._clock.sleep(0)
        held = {claim: position for claim, position in positions.items() if claim in self._at}
        self.log.store({claim.partition: position for claim, position in held.items()})
        return held.keys()

    async def ends(self, claims: Collection[SourceClaim]) -> Mapping[SourceClaim, int]:
        """The offsets after the last records."""
        return {claim: self.log.end(claim.partition) for claim in claims}

    def extend(self, records: Iterable[SourceRecord]) -> None:
        """Nothing to extend."""
