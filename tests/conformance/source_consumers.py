"""Running consumers on the source under test, with a journal of their handlers.

Every test with a consumer checks these rules; `WatchedSource.violations` lists the violations:

1. No position passes an unsettled message (C1), and none moves back within a claim (C3).
2. No claim is committed after its end (C3), and one commit is in flight at a time (C6).
3. The map of a commit agrees with its position: it contains no unsettled message (C4, C5).

White box: the calls between a consumer and its source.
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any, TypeAlias

from sluicegate._core.source import ExtendsRecords, KeepsAlive
from sluicegate.consumer import Commits
from sluicegate.consumer.consumer import Consumer
from sluicegate.consumer.handling.results import Ack
from sluicegate.consumer.progress import offset_map
from sluicegate.testing.conformance.source.subject import News, SourceUnderTest

if TYPE_CHECKING:
    from collections.abc import (
        AsyncIterator,
        Awaitable,
        Callable,
        Collection,
        Iterable,
        Iterator,
        Mapping,
        Sequence,
    )
    from typing import Unpack

    from sluicegate._core.clock import Clock
    from sluicegate._core.source import (
        ClaimHost,
        Fetched,
        Position,
        Source,
        SourceClaim,
        SourceRecord,
        TopicPartition,
    )
    from sluicegate.consumer import DrainReport
    from sluicegate.consumer.lanes.message import Message
    from sluicegate.consumer.settings import ConsumerOptions


DRAIN = 5.0
"""The consumer's default, in seconds; a source may allow less."""
NO_COMMITS = 3600.0
"""Seconds between commits of a consumer that commits at its end only."""
Place: TypeAlias = "tuple[int, int]"
"""Partition and offset."""


class ConsumerRun:
    """A running consumer and its source."""

    def __init__(self, consumer: Consumer, source: WatchedSource) -> None:
        self.consumer = consumer
        self.source = source
        self._task: asyncio.Task[DrainReport] | None = None

    def begin(self, run: Callable[[Consumer], Awaitable[DrainReport]]) -> None:
        """Start the consumer."""

        async def running() -> DrainReport:
            return await run(self.consumer)

        self._task = asyncio.get_running_loop().create_task(running())

    async def end(self) -> DrainReport:
        """Suspend until the consumer has ended without a drain; raises its error."""
        assert self._task is not None
        return await self._task

    async def stop(self) -> DrainReport:
        """Drain the consumer; a second call has no effect."""
        self.consumer.stop()
        return await self.end()


class ConsumingSource(SourceUnderTest):
    """Helpers that run consumers on the source."""

    @asynccontextmanager
    async def consuming(
        self,
        topic: str,
        journal: Journal,
        handler: Callable[[Any], Awaitable[object]] | None = None,
        *,
        run: Callable[[Consumer], Awaitable[DrainReport]] | None = None,
        **options: Unpack[ConsumerOptions],
    ) -> AsyncIterator[ConsumerRun]:
        """Run a consumer with this handler inside the context, and drain it at the end.

        `run` starts it in another way. Checks the calls that its source received.
        """
        call = handler or journal.handler()
        source = WatchedSource(self.source(topic), journal.news, journal.is_settled)
        defaults: ConsumerOptions = {
            "clock": journal.clock,
            "commits": Commits(every=NO_COMMITS),
            "drain": DRAIN,
        }
        settings: ConsumerOptions = {**defaults, **options}
        if source.capabilities.revoke_within is not None:
            settings["drain"] = min(settings["drain"], 0.9 * source.capabilities.revoke_within)
        consumer = Consumer(source, **settings)
        async with consumer:
            running = ConsumerRun(consumer, source)
            running.begin(run or (lambda consumer: consumer.run(call)))
            try:
                yield running
            finally:
                await running.stop()
        assert source.violations + journal.violations == []

    async def lost(self, run: ConsumerRun, journal: Journal) -> None:
        """Lose all claims of a consumer; suspend until it has as many new ones."""
        before = {*run.source.claims}
        await self.lose(run.source.inner)
        await journal.news.wait_for(
            lambda: len(run.source.claims) == len(before) and before.isdisjoint(run.source.claims)
        )


class Journal:
    """The begun and handled messages of a topic, and every overlap within a key."""

    def __init__(self, clock: Clock, before: Journal | None = None) -> None:
        """`before` is the journal of ended consumers: messages settled there are settled here."""
        self.news = News()
        self.clock = clock
        self.begun: list[Place] = []
        self.handled: list[Place] = []
        """The messages that handlers have acknowledged, in order, with repeats."""
        self.running: set[Place] = set()
        self.violations: list[str] = []
        self._keys: dict[Place, bytes] = {}
        self._settled: set[Place] = set() if before is None else before.settled

    @contextmanager
    def handling(self, *messages: Message) -> Iterator[None]:
        """Note the beginning and the end of a handler, for one message or for a batch."""
        lanes = {(message.partition, message.key) for message in messages}
        overlapping = [other for other in self.running if (other[0], self._keys[other]) in lanes]
        places = [place_of(message) for message in messages]
        if overlapping:
            self.violations.append(f"{places} ran concurrently with {overlapping} of its key")
        self._keys.update(zip(places, [message.key for message in messages], strict=True))
        self.begun += places
        self.running.update(places)
        self.news.fire()
        try:
            yield
        finally:
            self.running.difference_update(places)
            self.news.fire()

    def done(self, *messages: Message) -> None:
        """Note messages as handled, so that they may be committed."""
        for message in messages:
            self.handled.append(place_of(message))
            self.settle(message)
        self.news.fire()

    def handler(
        self, act: Callable[[Message], Awaitable[object]] | None = None
    ) -> Callable[[Message], Awaitable[object]]:
        """Make a handler that calls `act`, or lets other tasks run for a few rounds."""

        async def handle(message: Message) -> object:
            result: object = None
            with self.handling(message):
                if act is not None:
                    result = await act(message)
                else:
                    for _ in range(message.offset % 4):
                        await self.clock.sleep(0)
            if result is None or isinstance(result, Ack):
                self.done(message)
            return result

        return handle

    def settle(self, message: Message) -> None:
        """Allow the commit of a message that no handler has acknowledged."""
        self._settled.add(place_of(message))

    def settle_all(self, *places: Place) -> None:
        """Like `settle`, by partition and offset."""
        self._settled.update(places)

    @property
    def settled(self) -> set[Place]:
        """The messages that may be committed."""
        return set(self._settled)

    def is_settled(self, record: SourceRecord) -> bool:
        """Whether a record may be committed."""
        return (record.partition, record.offset) in self._settled

    async def wait_for(self, count: int) -> None:
        """Suspend until this number of messages has been handled, repeats included."""
        await self.news.wait_for(lambda: len(self.handled) >= count)

    def check_order(self) -> None:
        """Check that the messages of each key were handled once, and in order."""
        last: dict[tuple[int, bytes], int] = {}
        for partition, offset in self.handled:
            lane = partition, self._keys[partition, offset]
            assert last.get(lane, -1) < offset, (
                f"{lane}: {offset} was handled after {last[lane]}: {self.handled}"
            )
            last[lane] = offset


def place_of(message: Message) -> Place:
    """Return the partition and offset of a message."""
    return message.partition, message.offset


class WatchedSource:
    """The source of a consumer. `is_settled` returns whether a record's handler has ended."""

    def __init__(
        self, source: Source, news: News, is_settled: Callable[[SourceRecord], bool]
    ) -> None:
        self.capabilities = source.capabilities
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

    def cancelled(self, claim: SourceClaim, offsets: Collection[int]) -> None:
        """Pass the call on."""
        self._host.cancelled(claim, offsets)

    def reported(self, trouble: str | None) -> None:
        """Pass the call on."""
        self._host.reported(trouble)
