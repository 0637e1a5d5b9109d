"""A source over a `MemoryLog` that is controlled by a test.

1. Only the test assigns and removes claims: `assign`, `revoke`, `lose`, `give`. Opening the source
   claims its initial partitions.
2. A revoke waits for the host, stores the returned positions, and ends the claims. A loss only ends
   them.
3. After a crash the source has no further effect on the log, and its partitions are free.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, cast

from ..._core import checks
from ..._core.clock import LOOP_CLOCK, Signal, wait_until
from ..._core.errors import ClosedError
from ..._core.keywords import known_arguments
from ..._core.opening import only_user
from ..._core.runtime.cuts import end_if_cut
from ..._core.source import Fetched, Record, SourceCapabilities
from .log import AckDeadlines, Cursor, MemoryLog

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Collection, Iterable, Mapping, Sequence
    from datetime import timedelta

    from ..._core.clock import Clock
    from ..._core.source import (
        ClaimHost,
        Position,
        PositionStore,
        SourceClaim,
        SourceRecord,
        TopicPartition,
    )

RETRY_AFTER = 0.5
"""Delay in seconds before another attempt after an error of the store."""


@known_arguments()
class MemorySource:
    """One member of a group that reads a `MemoryLog`.

    Args:
        log: the records and the stored positions; several sources on one log form one group.
        partitions: the partitions to claim at opening. Default: all free ones, and later every new
            one.
        ends: whether the source ends when all records are delivered; otherwise it waits for more.
            The log must have a partition when the source is opened, which may be empty.
        chunk: the maximum number of records of one partition in a fetch; default 500.
        ack_wait: seconds after which a delivered record is redelivered, unless a stored position
            has passed it or it was extended; `None`: never.
        commit_seconds: duration of a commit.
        capabilities: those reported to the consumer; default: its own, with records that are
            extended if there is an `ack_wait`.
        clock: the source of time.

    Raises `ConfigError` for a bad argument. Used by one consumer, on one loop. The methods for
    tests return immediately, except `revoke` and `give`.
    """

    capabilities = SourceCapabilities(
        batches=True,
        lag="ends",
        shares="partitions",
        cooperative=True,
        metadata=True,
        extends=True,
        transactions="positions",
    )

    def __init__(
        self,
        log: MemoryLog,
        *,
        partitions: Iterable[TopicPartition] | None = None,
        ends: bool = False,
        chunk: int = 500,
        ack_wait: float | timedelta | None = None,
        commit_seconds: float | timedelta = 0.0,
        capabilities: SourceCapabilities | None = None,
        clock: Clock = LOOP_CLOCK,
    ) -> None:
        if not isinstance(cast("object", log), MemoryLog):
            raise checks.bad("log", log, "must be a MemoryLog(...)")
        if not (
            capabilities is None or isinstance(cast("object", capabilities), SourceCapabilities)
        ):
            raise checks.bad("capabilities", capabilities, "must be SourceCapabilities(...)")
        wait = checks.optional_seconds("ack_wait", ack_wait, usual=checks.LONG_TIMEOUT)
        self.log = log
        if capabilities is None and wait is not None:
            capabilities = replace(self.capabilities, extend_every=wait / 3)
        if capabilities is not None:
            self.capabilities = capabilities
        self.redelivered: list[Record] = []
        """The records that were redelivered within their claim, in order."""
        self.kept_alive = 0
        """The number of calls of `keep_alive`."""
        self._partitions = None if partitions is None else list(partitions)
        self._ends = checks.flag("ends", ends)
        self._chunk = checks.count("chunk", chunk)
        self._clock = clock
        self._deadlines = AckDeadlines(math.inf if wait is None else wait)
        self._left: LeftPositions | None = None
        self._script = Script(
            checks.seconds("commit_seconds", commit_seconds, zero=True, usual=checks.LONG_TIMEOUT)
        )
        self._host: ClaimHost | None = None
        self._cursors: dict[SourceClaim, Cursor] = {}
        self._news = Signal()
        self._has_crashed = False

    @property
    def group(self) -> str:
        """The name of the log's consumer group."""
        return self.log.group.name

    def with_positions(self, store: PositionStore) -> MemorySource:
        """Return this source, which from now on keeps its positions in `store` instead of the log.

        It is not a copy, so that a test can still control it. Raises `ClosedError` if it is open.
        """
        if self._host is not None:
            raise ClosedError(f"{self!r} is already open")
        self._left = LeftPositions(store, self._clock, self._begin, self.report)
        return self

    # -- the calls of the consumer -----------------------------------------------------------------

    @asynccontextmanager
    async def open(self, host: ClaimHost) -> AsyncGenerator[None]:
        """Join the group and claim partitions; at exit, end the claims without a commit."""
        with only_user(self):
            self._check()
            if self._ends and self._partitions is None and not self.log.records:
                rule = (
                    "has no partition, so a source with ends=True would wait for one for ever; add records "
                    "before the run, or create the log with MemoryLog(partitions=[...])"
                )
                raise checks.bad("log", self.log, rule)
            self._host = host
            group = self.log.group
            group.join(self, self._offered)
            try:
                wanted = self._partitions
                self.assign(group.free(self.log.records) if wanted is None else wanted)
                yield
            finally:
                self._end(list(self._cursors))
                self._end_pending(self._pending())
                group.leave(self)
                self._host = None

    async def fetch(self, claims: Sequence[SourceClaim], most: int) -> Sequence[Fetched] | None:
        """Deliver records; suspend until there are some. Raises scripted errors, or `Crashed`."""
        while True:
            self._check()
            if (error := self._script.next_fetch()) is not None:
                raise error
            self._repeat_overdue()
            if found := self._fetched(claims, most):
                return found
            if self._is_over():
                return None
            await wait_until(self._clock, self._deadlines.next_due, self.log.news, self._news)

    def _is_over(self) -> bool:
        if not self._ends or self._pending():
            return False
        return all(cursor.is_over() for cursor in self._cursors.values())

    def _fetched(self, claims: Sequence[SourceClaim], most: int) -> list[Fetched]:
        found: list[Fetched] = []
        now = self._clock.now()
        for claim in claims:
            cursor = self._cursors.get(claim)
            taken = None if cursor is None else cursor.take(min(most, self._chunk))
            if taken is not None:
                found.append(Fetched(claim, *taken))
                most -= len(taken[0])
                self._deadlines.begin(taken[0], now)
        return found

    def _repeat_overdue(self) -> None:
        if self._deadlines.next_due > self._clock.now():
            return
        for claim, cursor in self._cursors.items():
            self._repeat(cursor, self._deadlines.overdue(claim.partition, self._clock.now()))

    def _repeat(self, cursor: Cursor, records: Sequence[Record]) -> None:
        delivered = [record for record in records if record.offset < cursor.at]
        cursor.repeat(delivered)
        self.redelivered += delivered

    async def keep_alive(self) -> None:
        """Count the call. Raises `Crashed`."""
        self._check()
        self.kept_alive += 1

    async def commit(self, positions: Mapping[SourceClaim, Position]) -> Collection[SourceClaim]:
        """Store the positions of open claims. Raises scripted errors, or `Crashed`.

        A cancelled call has stored nothing.
        """
        self._check()
        step = self._script.next_commit()
        await self._clock.sleep(step.seconds)
        self._check()
        held = [claim for claim in positions if claim in self._cursors]
        if step.is_stored:
            wanted = {claim.partition: positions[claim] for claim in held}
            stored = set(await self._store(wanted))
            held = [claim for claim in held if claim.partition in stored]
            for claim in held:
                self._deadlines.end(claim.partition, positions[claim].offset)
        if step.error is not None:
            raise step.error
        return held if step.is_stored else []

    async def _store(
        self, positions: Mapping[TopicPartition, Position]
    ) -> Collection[TopicPartition]:
        if self._left is not None:
            return await self._left.store.store(positions)
        self.log.store(positions)
        return list(positions)

    async def ends(self, claims: Collection[SourceClaim]) -> Mapping[SourceClaim, int]:
        """Return the offsets after the last records. Raises `Crashed`."""
        self._check()
        return {claim: self.log.end(claim.partition) for claim in claims}

    def replace(self, claim: SourceClaim) -> None:
        """Replace a claim by a new one of its partition, at the stored position."""
        if claim in self._cursors:
            self._end([claim])
            self.assign([claim.partition])

    def extend(self, records: Iterable[SourceRecord]) -> None:
        """Restart the `ack_wait` of these records."""
        self._deadlines.extend(records, self._clock.now())

    # -- control by tests --------------------------------------------------------------------------

    @property
    def claimed(self) -> list[TopicPartition]:
        """The partitions of the open claims."""
        return [claim.partition for claim in self._cursors]

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Assign these partitions to the consumer, from their stored positions on.

        Raises `ConfigError` if a partition has an owner, and `ClosedError` if the source is not
        open.
        """
        self._open_host()
        claimed = {*self.claimed, *self._pending()}
        wanted = [partition for partition in partitions if partition not in claimed]
        self.log.group.own(wanted, self)
        for partition in wanted:
            self.log.add_partition(partition)
        if self._left is None:
            self._begin({partition: self.log.start(partition) for partition in wanted})
        elif wanted:
            self._left.take(wanted, self.log.start)

    def _begin(self, starts: Mapping[TopicPartition, Position]) -> None:
        for claim in self._open_host().assigned(starts):
            start = starts[claim.partition].offset
            self._cursors[claim] = Cursor(self.log, claim.partition, start)
        self._news.fire()

    async def revoke(self, partitions: Iterable[TopicPartition], within: float = math.inf) -> None:
        """Revoke these partitions; running messages have `within` seconds to end.

        Returns when the positions are stored and the claims have ended. Raises the commit's error,
        and `ClosedError` if the source is not open. A cancelled revoke ends the claims without a
        commit.
        """
        host, claims = self._open_host(), self._claims_of(partitions)
        self._end_pending(partitions)
        try:
            positions = await host.revoked(claims, within)
            if positions:
                await self.commit(positions)
        finally:
            self._end(claims)

    def lose(self, partitions: Iterable[TopicPartition]) -> None:
        """Remove these partitions from the consumer immediately, without a commit."""
        self._end_pending(partitions)
        self._end(self._claims_of(partitions))

    async def give(
        self, partitions: Iterable[TopicPartition], to: MemorySource, within: float = math.inf
    ) -> None:
        """Revoke these partitions and assign them to another member, even if the commit fails.

        A partition that was reassigned in the meantime is not moved.
        """
        moved = list(partitions)
        try:
            await self.revoke(moved, within)
        finally:
            to.assign(self.log.group.free(moved))

    def crash(self) -> None:
        """Simulate the death of the process: nothing more is delivered or stored.

        Its partitions become free. The consumer is not notified. Its next fetch raises `Crashed`,
        which ends it; a new source on the same log starts from the stored positions.
        """
        self._has_crashed = True
        self.log.group.leave(self)
        self._news.fire()

    def redeliver(self, partition: TopicPartition, start: int = 0) -> None:
        """Redeliver the delivered records from the offset `start` on, within their claim."""
        for claim in self._claims_of([partition]):
            delivered = self.log.read(partition, start, len(self.log.records[partition]))
            self._repeat(self._cursors[claim], delivered)
        self._news.fire()

    def script_commit(
        self,
        error: BaseException | None = None,
        *,
        stored: bool | None = None,
        seconds: float = 0.0,
    ) -> None:
        """Script the next commit that has no script yet.

        Args:
            error: the exception that the commit raises.
            stored: whether the positions are stored. True with an error simulates a lost response;
                false without one, a response that nothing was stored. Default: true unless there is
                an error.
            seconds: duration of the commit.
        """
        self._script.add_commit(error, stored, seconds)

    def script_fetch(self, error: BaseException) -> None:
        """Script an error for the next fetch; a waiting fetch raises it immediately."""
        self._script.add_fetch(error)
        self._news.fire()

    def report(self, trouble: str | None) -> None:
        """Report a reason why nothing can be delivered; `None` clears it."""
        self._open_host().reported(trouble)

    # -- internal ----------------------------------------------------------------------------------

    def _offered(self, partition: TopicPartition) -> None:
        """Claim a new partition, unless the source has fixed partitions."""
        if self._partitions is None:
            self.assign([partition])

    def _claims_of(self, partitions: Iterable[TopicPartition]) -> list[SourceClaim]:
        wanted = set(partitions)
        return [claim for claim in self._cursors if claim.partition in wanted]

    def _end(self, claims: Collection[SourceClaim]) -> None:
        """End the open claims among these."""
        held = [claim for claim in claims if claim in self._cursors]
        if self._left is not None:
            self._left.end([claim.partition for claim in held])
        for claim in held:
            del self._cursors[claim]
            self._deadlines.forget(claim.partition)
        if not self._has_crashed:
            self.log.group.release([claim.partition for claim in held])
        if held:
            self._open_host().ended(held)
        self._news.fire()

    def _pending(self) -> list[TopicPartition]:
        """The partitions whose positions the store has not returned yet."""
        return [] if self._left is None else self._left.pending

    def _end_pending(self, partitions: Iterable[TopicPartition]) -> None:
        pending = set(self._pending()).intersection(partitions)
        if self._left is not None and pending:
            self._left.end(pending)
            self.log.group.release(pending)

    def _open_host(self) -> ClaimHost:
        if self._host is None:
            raise ClosedError(f"{self!r} is not open: run a consumer on it")
        return self._host

    def _check(self) -> None:
        if self._has_crashed:
            raise Crashed(f"{self!r} has crashed")

    def __repr__(self) -> str:
        return f"MemorySource({', '.join(map(str, self.claimed)) or 'nothing claimed'})"


class Crashed(ConnectionError):
    """A call of a memory source that has crashed."""


@dataclass(frozen=True, slots=True)
class CommitStep:
    """The result of one commit."""

    error: BaseException | None = None
    is_stored: bool = True
    seconds: float = 0.0


class Script:
    """Scripted commits and fetches, followed by normal ones."""

    def __init__(self, commit_seconds: float = 0.0) -> None:
        self._usual = CommitStep(seconds=commit_seconds)
        self._commits: deque[CommitStep] = deque()
        self._fetches: deque[BaseException] = deque()

    def add_commit(self, error: BaseException | None, stored: bool | None, seconds: float) -> None:
        """Script the next commit that has no script yet."""
        is_stored = error is None if stored is None else stored
        seconds = checks.seconds("seconds", seconds, zero=True, usual=checks.LONG_TIMEOUT)
        self._commits.append(CommitStep(error, is_stored, seconds))

    def add_fetch(self, error: BaseException) -> None:
        """Script an error for the next fetch that has no script yet."""
        self._fetches.append(error)

    def next_commit(self) -> CommitStep:
        """Return the result of the commit that begins."""
        return self._commits.popleft() if self._commits else self._usual

    def next_fetch(self) -> BaseException | None:
        """Return the error of the fetch that begins; `None` if there is none."""
        return self._fetches.popleft() if self._fetches else None


class LeftPositions:
    """Takes over partitions in the store, then begins their claims."""

    def __init__(
        self,
        store: PositionStore,
        clock: Clock,
        begin: Callable[[Mapping[TopicPartition, Position]], None],
        report: Callable[[str | None], None],
    ) -> None:
        self.store = store
        self._clock = clock
        self._begin = begin
        self._report = report
        self._taking: dict[TopicPartition, asyncio.Task[None]] = {}

    def take(
        self, wanted: Sequence[TopicPartition], start: Callable[[TopicPartition], Position]
    ) -> None:
        """Begin claims of these partitions, at `start` if the store has no position."""
        task = asyncio.get_running_loop().create_task(self._take(wanted, start))
        self._taking.update(dict.fromkeys(wanted, task))

    async def _take(
        self, wanted: Sequence[TopicPartition], start: Callable[[TopicPartition], Position]
    ) -> None:
        while True:
            try:
                known = await self.store.take(wanted)
            except Exception as error:  # like an error of a broker: reported, and tried again
                end_if_cut(error)
                self._report(str(error))
                await self._clock.sleep(RETRY_AFTER)
            else:
                break
        self._report(None)
        me = asyncio.current_task()
        mine = [each for each in wanted if self._taking.get(each) is me]
        for each in mine:
            del self._taking[each]
        self._begin({each: known[each] if each in known else start(each) for each in mine})

    @property
    def pending(self) -> list[TopicPartition]:
        """The partitions whose claims have not begun."""
        return list(self._taking)

    def end(self, partitions: Collection[TopicPartition]) -> None:
        """Forget these partitions, whether or not their claims have begun."""
        for each in partitions:
            task = self._taking.pop(each, None)
            if task is not None and task not in self._taking.values():
                task.cancel()
        self.store.release(partitions)
