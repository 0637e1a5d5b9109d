"""A source that passes every call on, and checks the calls of its consumer.

Every test with a consumer checks these rules; `WatchedSource.violations` lists the violations:

1. No position passes an unsettled message (C1), and none moves back within a claim (C3).
2. No claim is committed after its end (C3), and one commit is in flight at a time (C6).
3. The map of a commit agrees with its position: it contains no unsettled message (C4, C5).
"""

from __future__ import annotations

from collections import deque
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from ...._core.source import ExtendsRecords, KeepsAlive
from ....consumer.progress import offset_map

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping, Sequence

    from ...._core.source import (
        ClaimHost,
        Fetched,
        Position,
        Source,
        SourceClaim,
        SourceRecord,
        TopicPartition,
    )
    from .news import News


class WatchedSource:
    """The source of a consumer. `is_settled` returns whether a record's handler has ended."""

    def __init__(
        self, source: Source, news: News, is_settled: Callable[[SourceRecord], bool]
    ) -> None:
        self.traits = source.traits
        self.claims: list[SourceClaim] = []
        """The open claims."""
        self.revoking: list[SourceClaim] = []
        """The claims of the last revoke."""
        self.is_fetching = False
        self.kept_alive = 0
        self.delivered = 0
        self.violations: list[str] = []
        self.inner = source
        self._news = news
        self._is_settled = is_settled
        self._records: dict[SourceClaim, list[SourceRecord]] = {}
        self._last: dict[SourceClaim, int] = {}
        self._stored: list[tuple[Mapping[SourceClaim, Position], bool]] = []
        """Stored positions in order, and whether a commit has stored them or claims found them."""
        self._failures: deque[BaseException] = deque()
        self._is_committing = False

    @property
    def commits(self) -> list[Mapping[SourceClaim, Position]]:
        """The positions stored by commits, in order."""
        return [positions for positions, is_commit in self._stored if is_commit]

    def fail_next_commit(self, error: BaseException) -> None:
        """Raise this from the next commit, which stores nothing."""
        self._failures.append(error)

    def committed(self, partition: TopicPartition) -> int:
        """Return the last stored position of a partition: by a commit of this consumer, or as a
        claim has found it; -1 if there is none.
        """
        for stored, _ in reversed(self._stored):
            for claim, position in stored.items():
                if claim.partition == partition:
                    return position.offset
        return -1

    # -- the consumer's calls ----------------------------------------------------------------------

    @asynccontextmanager
    async def open(self, host: ClaimHost) -> AsyncIterator[None]:
        """Open the source for a host that notes its claims."""
        async with self.inner.open(WatchedHost(host, self, self._news)):
            yield

    async def fetch(self, claims: Sequence[SourceClaim], most: int) -> Sequence[Fetched] | None:
        """Fetch, and note the records."""
        self.is_fetching = True
        self._news.fire()
        try:
            fetched = await self.inner.fetch(claims, most)
        finally:
            self.is_fetching = False
        for claim, records, *_ in fetched or ():
            self._records.setdefault(claim, []).extend(records)
            self.delivered += len(records)
        self._news.fire()
        return fetched

    async def keep_alive(self) -> None:
        """Pass the call on, and count it."""
        if isinstance(self.inner, KeepsAlive):
            await self.inner.keep_alive()
        self.kept_alive += 1
        self._news.fire()

    async def commit(self, positions: Mapping[SourceClaim, Position]) -> Collection[SourceClaim]:
        """Check the positions, and store them."""
        if self._is_committing:
            self.violations.append("two commits were in flight")
        self._is_committing = True
        try:
            self._check(positions)
            if self._failures:
                raise self._failures.popleft()
            stored = await self.inner.commit(positions)
            self._stored.append(({claim: positions[claim] for claim in stored}, True))
            return stored
        finally:
            self._is_committing = False
            self._news.fire()

    async def ends(self, claims: Collection[SourceClaim]) -> Mapping[SourceClaim, int]:
        """Pass the call on."""
        return await self.inner.ends(claims)

    def extend(self, records: Iterable[SourceRecord]) -> None:
        """Pass the call on."""
        if isinstance(self.inner, ExtendsRecords):
            self.inner.extend(records)

    # -- its checks --------------------------------------------------------------------------------

    def _check(self, positions: Mapping[SourceClaim, Position]) -> None:
        for claim, position in positions.items():
            if claim.is_closed:
                self.violations.append(f"{claim} has ended, and was committed at {position.offset}")
            if position.offset < self._last.get(claim, 0):
                self.violations.append(f"{claim} went back to {position.offset}")
            self._last[claim] = position.offset
            done = offset_map.decode(position.offset, position.metadata)
            for record in self._records.get(claim, ()):
                told = record.offset < position.offset or any(
                    start <= record.offset < end for start, end in done
                )
                if told and not self._is_settled(record):
                    self.violations.append(
                        f"{claim.partition}@{record.offset} is unfinished, and was committed"
                    )

    def begin(
        self, claims: Sequence[SourceClaim], starts: Mapping[TopicPartition, Position]
    ) -> None:
        """Note claims that have begun, and their positions."""
        self.claims += claims
        self._stored.append(({claim: starts[claim.partition] for claim in claims}, False))

    def revoke(self, claims: Collection[SourceClaim]) -> None:
        """Note a request to drain claims."""
        self.revoking = list(claims)

    def end(self, claims: Collection[SourceClaim]) -> None:
        """Note claims that have ended."""
        self.claims = [claim for claim in self.claims if all(claim is not each for each in claims)]


class WatchedHost:
    """A consumer's host that notes its claims."""

    def __init__(self, host: ClaimHost, watch: WatchedSource, news: News) -> None:
        self._host = host
        self._watch = watch
        self._news = news

    @property
    def room_bytes(self) -> int:
        """Pass the call on."""
        return self._host.room_bytes

    def assigned(self, starts: Mapping[TopicPartition, Position]) -> Sequence[SourceClaim]:
        """Begin claims."""
        begun = self._host.assigned(starts)
        self._watch.begin(begun, starts)
        self._news.fire()
        return begun

    async def revoked(
        self, claims: Collection[SourceClaim], within: float
    ) -> Mapping[SourceClaim, Position]:
        """Drain claims."""
        self._watch.revoke(claims)
        self._news.fire()
        return await self._host.revoked(claims, within)

    def ended(self, claims: Collection[SourceClaim]) -> None:
        """End claims."""
        self._host.ended(claims)
        self._watch.end(claims)
        self._news.fire()

    def reported(self, trouble: str | None) -> None:
        """Pass the call on."""
        self._host.reported(trouble)
