"""The claims of one membership of a group, from assignment to revoke or loss.

1. A claim begins once its stored position is known, and is read from there. Until then nothing is
   read from its partition.
2. Assignments and revokes affect only the partitions that they name. Other claims continue, and may
   be committed while one is revoked.
3. The positions of a commit are selected in the same stretch in which it is sent: claims that have
   ended are left out, as are positions below an earlier one. A broker would accept both.
4. A revoke waits for the host and commits. A loss commits nothing.
5. All records of a claim before `next_offset` have been delivered, all before `ahead` have arrived.
   Arrived records wait with their claim until they are requested, so a claim without requests does
   not block the others. A claim that is moved drops them, and is read again from its new offset.
6. A position is stored with the epoch of the leader that stored the record before it, if this claim
   has read that record. The next claim reads this record once more: another epoch means that the log
   was truncated before the position, and has grown again. librdkafka itself checks this only when a
   leader changes while it reads.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from itertools import count
from typing import TYPE_CHECKING

from confluent_kafka import KafkaException

from ..._core.clock import LOOP_CLOCK
from ..._core.logs import for_log, log_safely, named
from ..._core.source import Fetched, Position
from ..groups import LAST_FAILED, NO_POSITION, RETRY_FROM, RETRY_TO, Beginnings
from .errors import is_rebalanced, librdkafka_error, reason_of
from .member import UNKNOWN_EPOCH, EpochPosition

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from confluent_kafka import KafkaError

    from ..._core.source import ClaimHost, SourceClaim, SourceRecord, TopicPartition, Troubles
    from ..arguments import StartPoint
    from ..groups import History
    from .member import GroupMember
    from .options import ConfluentOptions
    from .reader import Run

logger = logging.getLogger("sluicegate.kafka")


_numbers = count(1)


class GroupClaims:
    """The claims of a member, and their commits. Listens to its member."""

    def __init__(
        self,
        host: ClaimHost,
        options: ConfluentOptions,
        start: StartPoint,
        troubles: Troubles,
        history: History,
    ) -> None:
        self._host = host
        self._options = options
        self._start = start
        self._troubles = troubles
        self._history = history
        self._held: dict[TopicPartition, ArrivingClaim] = {}
        self._expected: dict[TopicPartition, int] = {}
        """The partitions owned by this member, each with the number of its assignment."""
        self._stored: dict[SourceClaim, int] = {}
        """The last offset that was sent for each claim."""
        self._epochs: dict[TopicPartition, int] = {}
        """The epochs of the stored positions of the next claims."""
        self._loading: set[asyncio.Task[None]] = set()
        self._is_closed = False
        self._member: GroupMember | None = None
        self._beginnings: Beginnings | None = None
        self.changes = 0
        """The number of beginnings and ends of claims."""

    def join(self, member: GroupMember) -> None:
        """Listen to this member."""
        self._member = member
        self._beginnings = Beginnings(member, self._start, self._history, group=self._options.group)

    def owned(self, claim: SourceClaim) -> ArrivingClaim | None:
        """Return the state of an open claim; `None` once it has ended."""
        found = self._held.get(claim.partition)
        return found if found is not None and found.claim is claim else None

    @property
    def room_bytes(self) -> int:
        """The bytes of values that the consumer has room for."""
        return self._host.room_bytes

    @property
    def held(self) -> Mapping[TopicPartition, ArrivingClaim]:
        """The open claims."""
        return self._held

    # -- assignments -------------------------------------------------------------------------------

    def on_assigned(self, partitions: Sequence[TopicPartition]) -> None:
        """Begin to read the positions of these partitions; their claims begin afterwards.

        No claim begins after `close`: a rebalance may complete while the client leaves.
        """
        if self._is_closed:
            return
        self._troubles.note("group", None)
        number = next(_numbers)
        self._expected |= dict.fromkeys(partitions, number)
        task = asyncio.get_running_loop().create_task(self._load(sorted(partitions), number))
        self._loading.add(task)
        task.add_done_callback(self._loading.discard)

    async def _load(self, partitions: Sequence[TopicPartition], number: int) -> None:
        delay = RETRY_FROM
        missing = list(partitions)
        part = f"positions {number}"
        if not missing and not self._held:
            self._host.assigned({})  # a member without partitions is ready
        try:
            while missing := [each for each in missing if self._expected.get(each) == number]:
                try:
                    starts = await self._starts(missing)
                except (KafkaException, TimeoutError) as error:
                    reason = reason_of(error, self._options)
                else:
                    self._begin(starts, number)
                    missing = [each for each in missing if each not in starts]
                    reason = NO_POSITION % named(missing)
                if missing:
                    self._troubles.note(part, reason)
                    await LOOP_CLOCK.sleep(delay)
                    delay = min(RETRY_TO, delay * 2)
        finally:
            self._troubles.note(part, None)

    async def _starts(
        self, partitions: Collection[TopicPartition]
    ) -> dict[TopicPartition, Position]:
        assert self._member is not None
        assert self._beginnings is not None
        found = await self._member.committed(partitions)
        self._epochs |= {each: at.epoch for each, at in found.items()}
        stored = {each: at.position for each, at in found.items()}
        return await self._beginnings.of(partitions, stored, self._send_starts)

    async def _send_starts(
        self, positions: Mapping[TopicPartition, Position]
    ) -> Collection[TopicPartition]:
        return await self._send(
            lambda: {
                each: EpochPosition(at) for each, at in positions.items() if each in self._expected
            }
        )

    def _begin(self, starts: Mapping[TopicPartition, Position], number: int) -> None:
        """Begin claims at these positions, for the partitions that still have this assignment."""
        begun = {each: at for each, at in starts.items() if self._expected.get(each) == number}
        for partition in begun:
            self._troubles.note(str(partition), None)  # a reason of the previous claim
        if begun:
            self._claim(begun)

    def _claim(self, starts: Mapping[TopicPartition, Position]) -> None:
        self.changes += 1
        for claim in self._host.assigned(starts):
            partition = claim.partition
            offset, epoch = starts[partition].offset, self._epochs.pop(partition, UNKNOWN_EPOCH)
            self._held[partition] = ArrivingClaim(claim, offset, epoch)

    async def on_revoked(self, partitions: Sequence[TopicPartition]) -> None:
        """Release these partitions, and commit them. Never raises."""
        for each in partitions:
            self._expected.pop(each, None)
        claims = [self._held[each].claim for each in partitions if each in self._held]
        try:
            if claims:
                await self._give_up(claims)
        except Exception as error:
            log_safely(logger, logging.WARNING, LAST_FAILED, self._options.group, for_log(error))
        finally:
            self._end([claim for claim in claims if self.owned(claim) is not None])

    async def _give_up(self, claims: Collection[SourceClaim]) -> None:
        positions = await self._host.revoked(claims, self._options.revoke_within)
        async with asyncio.timeout(self._options.commit_timeout):
            await self._send(lambda: self._committable(positions))

    def on_lost(self, partitions: Sequence[TopicPartition]) -> None:
        """End the claims of these partitions without a commit."""
        for each in partitions:
            self._expected.pop(each, None)
        claims = [self._held[each].claim for each in partitions if each in self._held]
        if claims:
            self._history.lose(LOOP_CLOCK.now())
        self._end(claims)

    def _end(self, claims: Sequence[SourceClaim]) -> None:
        for claim in claims:
            del self._held[claim.partition]
            self._stored.pop(claim, None)
        self.changes += 1
        if claims:
            self._host.ended(claims)

    def close(self) -> None:
        """End all claims without a commit, and begin no more."""
        self._is_closed = True
        self._expected.clear()
        for task in self._loading:
            task.cancel()
        self._end([each.claim for each in self._held.values()])

    def replace(self, owned: ArrivingClaim, start: int) -> None:
        """Replace a claim whose log has changed by another one that begins at `start`."""
        self._history.restart([owned.claim.partition])
        self._end([owned.claim])
        self._claim({owned.claim.partition: Position(start)})

    def on_error(self, error: KafkaError, topic: str | None) -> None:
        """Record an error of the group."""
        self._troubles.note("group", reason_of(error, self._options, topic))

    # -- commits -----------------------------------------------------------------------------------

    async def commit(self, positions: Mapping[SourceClaim, Position]) -> Collection[SourceClaim]:
        """Store positions in one attempt; return the claims whose positions are known to be stored.

        Stores nothing after a revoke or a loss. Raises the librdkafka error, and `TimeoutError`
        if there is no response in time.
        """
        seconds = self._options.commit_timeout
        try:
            async with asyncio.timeout(seconds):
                stored = set(await self._send(lambda: self._committable(positions)))
        except TimeoutError:
            raise TimeoutError(f"the commit was not answered in {seconds:g} s") from None
        return [
            claim
            for claim in positions
            if claim.partition in stored and self.owned(claim) is not None
        ]

    def _committable(
        self, positions: Mapping[SourceClaim, Position]
    ) -> dict[TopicPartition, EpochPosition]:
        """Return the positions of open claims, without those that would go back."""
        found: dict[TopicPartition, EpochPosition] = {}
        for claim, at in positions.items():
            owned = self.owned(claim)
            if owned is not None and at.offset >= self._stored.get(claim, 0):
                self._stored[claim] = at.offset
                found[claim.partition] = EpochPosition(at, owned.epoch_before(at.offset))
        return found

    async def _send(
        self, positions: Callable[[], Mapping[TopicPartition, EpochPosition]]
    ) -> Collection[TopicPartition]:
        """Store positions, or nothing if the group was rebalanced before it received them."""
        assert self._member is not None
        sent: dict[TopicPartition, EpochPosition] = {}

        def sending() -> Mapping[TopicPartition, EpochPosition]:
            sent.update(positions())
            return sent

        try:
            stored = await self._member.commit(sending)
        except KafkaException as error:
            if is_rebalanced(librdkafka_error(error)):
                return ()
            raise
        self._history.store({each: sent[each].position for each in stored})
        return stored


class ArrivingClaim:
    """An open claim."""

    __slots__ = (
        "_epochs",
        "_has_to_confirm",
        "_runs",
        "ahead",
        "at_end",
        "claim",
        "count",
        "has_to_move",
        "is_aside",
        "newest",
        "next_offset",
    )

    def __init__(self, claim: SourceClaim, start: int, epoch: int = UNKNOWN_EPOCH) -> None:
        self.claim = claim
        self.next_offset = self.ahead = start
        is_known = start > 0 and epoch != UNKNOWN_EPOCH
        self._epochs = [(start - 1, start, epoch)] if is_known else []
        """The epochs of the records from one offset to the one before another."""
        self._has_to_confirm = bool(self._epochs)
        self.count = 0
        """Number of records that have arrived and were not delivered."""
        self.at_end = False
        """Whether the partition had no more records when it was last read."""
        self.is_aside = False
        """Whether reading is paused because its records are not requested."""
        self.has_to_move = False
        """Whether reading has to restart at `ahead`."""
        self.newest = 0
        """The size of the newest record, in bytes."""
        self._runs: deque[tuple[Sequence[SourceRecord], int]] = deque()

    @property
    def bytes(self) -> int:
        """Estimated bytes of the arrived records, by the size of the newest one."""
        return self.count * self.newest

    @property
    def has_news(self) -> bool:
        """Whether `take` would return anything."""
        return bool(self._runs)

    @property
    def read_from(self) -> int:
        """The offset to read from: `ahead`, or that of the record before it, to confirm its epoch."""
        return self.ahead - self._has_to_confirm

    def confirm(self, run: Run) -> Run | None:
        """Return a run without the record before `ahead`; `None` if this is another record than the
        one before the stored position. It may be missing: records are deleted.
        """
        if not self._has_to_confirm or not run.records:
            return run
        self._has_to_confirm = False
        if run.records[0].offset >= self.ahead:
            return run
        if run.epoch != self.epoch_before(self.ahead):
            return None
        return run._replace(records=run.records[1:])

    def skip_confirmation(self) -> None:
        """Read from `ahead` on, as the record before it was deleted."""
        self._has_to_confirm = False

    def arrive(self, run: Run) -> None:
        """Add records that were read."""
        self.at_end = not run.records
        if run.next_offset > self.ahead:
            self._runs.append((run.records, run.next_offset))
            self.count += len(run.records)
            value = run.records[-1].value if run.records else None
            self.newest = len(value) if isinstance(value, bytes) else self.newest
            self.ahead = run.next_offset
            if run.epoch is not None:
                self._add_epoch(run.records[0].offset, run.next_offset, run.epoch)

    def _add_epoch(self, first: int, end: int, epoch: int) -> None:
        if self._epochs and self._epochs[-1][2] == epoch:
            first, *_ = self._epochs.pop()
        self._epochs.append((first, end, epoch))

    def epoch_before(self, offset: int) -> int:
        """Return the epoch of the record before this offset, if it was read."""
        found = (epoch for first, end, epoch in self._epochs if first < offset <= end)
        return next(found, UNKNOWN_EPOCH)

    def take(self, most: int, least_span: int) -> Fetched:
        """Return the next records, up to `most`, and skip settled records after them if there are
        at least `least_span`.
        """
        records: list[SourceRecord] = []
        reached = self.next_offset
        while self._runs:
            run, after = self._runs.popleft()
            room = most - len(records)
            if len(run) > room:
                self._runs.appendleft((run[room:], after))
                if room:
                    records += run[:room]
                    reached = records[-1].offset + 1
                break
            records += run
            reached = after
        self.count -= len(records)
        self.next_offset = reached
        passed = self.claim.pass_settled(reached, least_span)
        if passed > reached:
            self.move(passed)
        return Fetched(self.claim, records, passed)

    def move(self, offset: int) -> None:
        """Continue at this offset."""
        self._runs.clear()
        self.count = 0
        self.next_offset = self.ahead = offset
        self.has_to_move, self.at_end, self._has_to_confirm = True, False, False

    def set_aside(self, *, aside: bool) -> None:
        """Pause or continue reading."""
        self.is_aside = aside

    def restart(self) -> None:
        """Restart reading after the last arrived record."""
        self.has_to_move = True

    def mark_placed(self) -> None:
        """Record that reading has started at `ahead`."""
        self.has_to_move = False
