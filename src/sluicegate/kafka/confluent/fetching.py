"""Fetches the records that have arrived, from all claims in turn.

1. librdkafka returns records of one partition after the other, in stretches of a megabyte. Arrived
   records wait with their claim, and a fetch takes a share from each claim. While a requested claim
   has no records, the fetch reads ahead through the records of the others, up to `AHEAD` records,
   and up to `AHEAD_BYTES` or the room of the consumer.
2. A claim with that many waiting records is not read until records of it are requested. Sizes are
   estimated by the newest records, so fewer records are taken from the client by one call if they
   are large; the first time, one.
3. Records belong to the claim that was placed before they were read, so the records read by a call
   in the thread are sorted before other claims are placed. An ended claim drops its records; the
   next claim of its partition is read from its own position.
4. A settled span of the stored map is skipped if it is long.
5. If an offset is no longer retained, reading continues at the start point, and the gap is
   reported. If the offset is beyond the end of the log, or librdkafka finds the log truncated
   before it (by the epochs of leaders), or the topic was recreated, the log was replaced, and so is
   the claim.
6. Delivery never suspends, so a cancelled fetch has delivered nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from confluent_kafka import KafkaException

from ..._core.clock import LOOP_CLOCK
from ..._core.source import Fetched
from ..groups import LEAST_SHARE, LONG_SPAN, Retained
from .errors import is_out_of_range, is_truncated, reason_of
from .reader import runs

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from ..._core.source import SourceClaim, TopicPartition, Troubles
    from ..arguments import StartPoint
    from .member import GroupMember
    from .membership import ArrivingClaim, GroupClaims
    from .options import ConfluentOptions
    from .reader import PartitionReader, Run

AHEAD = 10_000
"""Maximum number of records that wait with claims while others have none."""
AHEAD_BYTES = 1 << 24
"""Maximum number of bytes of these records."""
CHUNK = 100
"""Records to take from the client by one call. Its messages are objects that the garbage collector
visits: with five times as many, a record takes a fifth more time.
"""
LOOKS = 20
"""Maximum number of chunks in one fetch; they block the loop."""
WAIT = 0.1
"""Seconds in the client's thread before the next round."""
RETRY = 0.2
"""Delay in seconds before a partition is read again after an error."""


class ShareFetcher:
    """Fetches the records of a membership's claims."""

    def __init__(
        self,
        reader: PartitionReader,
        member: GroupMember,
        membership: GroupClaims,
        *,
        options: ConfluentOptions,
        start: StartPoint,
        troubles: Troubles,
    ) -> None:
        self._reader = reader
        self._member = member
        self._membership = membership
        self._options = options
        self._start = start
        self._troubles = troubles
        self._placed: dict[TopicPartition, ArrivingClaim] = {}
        """The claims that are being read."""
        self._seen = 0
        """The number of claim changes that have been handled."""
        self._out_of_range: list[tuple[ArrivingClaim, bool]] = []
        """Claims whose next offsets are out of range, and whether their logs were replaced."""
        self._standing: set[ArrivingClaim] = set()
        """Claims that remain out of range."""
        self._has_read = False
        """Whether a record has arrived, so that sizes are known."""
        self._has_failed = self._is_broken = False
        """Whether a partition could not be read, and whether the reader as a whole has failed."""

    async def fetch(self, claims: Sequence[SourceClaim], most: int) -> list[Fetched]:
        """Deliver records; suspend until there are some. A cancelled call has delivered nothing."""
        while True:
            try:
                await self._reader.idle()
                if self._is_broken:
                    await self._repair()
                self._sort(self._reader.take_kept())
                if self._out_of_range:
                    found = await self._relocate(*self._out_of_range[0])
                    del self._out_of_range[0]
                else:
                    await self._place(claims)
                    found = self._take(claims, most)
                if found:
                    return found
                await self._wait()
            except KafkaException as error:
                self._troubles.note("reading", reason_of(error, self._options))
                self._is_broken = True
                await LOOP_CLOCK.sleep(RETRY)

    async def _repair(self) -> None:
        """Start to read again after the reader as a whole has failed."""
        self._placed = {}
        self._seen = 0
        await self._reader.clear()
        self._is_broken = False
        self._troubles.note("reading", None)

    async def _wait(self) -> None:
        if self._has_failed:
            self._has_failed = False
            await LOOP_CLOCK.sleep(RETRY)
        elif not self._out_of_range:
            await self._reader.wait(WAIT)

    # -- placing claims ----------------------------------------------------------------------------

    async def _place(self, claims: Sequence[SourceClaim]) -> None:
        """Read the open claims that are not set aside, from their positions on."""
        held = self._membership.held
        for claim in claims:
            if (owned := self._membership.owned(claim)) is not None and owned.is_aside:
                owned.set_aside(aside=False)
                self._seen = 0
        if self._seen == self._membership.changes and not self._have_moved():
            return
        self._seen = self._membership.changes
        self._standing = {each for each in self._standing if held.get(each.claim.partition) is each}
        wanted = {
            partition: each
            for partition, each in held.items()
            if not each.is_aside and each not in self._standing
        }
        removed = [
            partition
            for partition, each in self._placed.items()
            if wanted.get(partition) is not each or each.has_to_move
        ]
        placed = {
            partition: each.read_from
            for partition, each in wanted.items()
            if self._placed.get(partition) is not each or each.has_to_move
        }
        for each in wanted.values():
            each.mark_placed()
        self._placed = wanted
        if removed or placed:
            await self._reader.place(removed, placed)

    def _have_moved(self) -> bool:
        return any(each.has_to_move for each in self._placed.values())

    # -- taking records ----------------------------------------------------------------------------

    def _take(self, claims: Sequence[SourceClaim], most: int) -> list[Fetched]:
        asked = [owned for claim in claims if (owned := self._membership.owned(claim)) is not None]
        self._read(asked, most)
        self._set_aside(asked)
        arrived = [owned for owned in asked if owned.has_news]
        share = max(LEAST_SHARE, -(-most // max(1, len(arrived))))
        found: list[Fetched] = []
        for owned in arrived:
            if most <= 0:
                break
            fetched = owned.take(min(share, most), LONG_SPAN)
            found.append(fetched)
            most -= len(fetched.records)
        return found

    def _read(self, asked: Sequence[ArrivingClaim], most: int) -> None:
        """Read until the requested claims have enough records, or no more have arrived."""
        limit = self._limit
        for _ in range(LOOKS):
            waiting = sum([owned.count for owned in asked])
            is_short = any(not (owned.has_news or owned.at_end) for owned in asked)
            if waiting >= (AHEAD if is_short else most):
                return
            size = sum([owned.bytes for owned in asked])
            if waiting and size >= limit:
                return
            largest = max([owned.newest for owned in asked], default=0)
            fitting = max(1, (limit - size) // largest) if largest else CHUNK
            messages = self._reader.take(min(CHUNK, fitting) if self._has_read else 1)
            if not messages:
                return
            self._has_read = True
            self._sort(messages)

    @property
    def _limit(self) -> int:
        return min(AHEAD_BYTES, self._membership.room_bytes)

    def _sort(self, messages: Sequence[Any]) -> None:
        for run in runs(messages):
            owned = self._placed.get(run.partition)
            if owned is None or self._membership.owned(owned.claim) is not owned:
                continue  # records of a claim that has ended
            if run.error is not None:
                self._fail(owned, run)
            elif not owned.has_to_move:
                self._troubles.note(str(run.partition), None)
                if (confirmed := owned.confirm(run)) is None:
                    self._out_of_range.append((owned, True))
                    owned.restart()
                else:
                    owned.arrive(confirmed)

    def _fail(self, owned: ArrivingClaim, run: Run) -> None:
        """Record an error of a partition, and stay at its position.

        librdkafka may skip a record that it cannot read.
        """
        assert run.error is not None
        if is_out_of_range(run.error):
            self._out_of_range.append((owned, is_truncated(run.error)))
            return
        self._has_failed = True
        self._troubles.note(
            str(run.partition), reason_of(run.error, self._options, run.partition.topic)
        )
        owned.restart()

    def _set_aside(self, asked: Sequence[ArrivingClaim]) -> None:
        limit = self._limit
        for owned in self._placed.values():
            is_full = owned.count >= AHEAD or (owned.count > 0 and owned.bytes >= limit)
            if is_full and owned not in asked:
                owned.set_aside(aside=True)
                self._seen = 0

    # -- offsets out of range ----------------------------------------------------------------------

    def begin_again(self, partitions: Sequence[TopicPartition]) -> None:
        """Begin at the start point in the next fetch, as these partitions have other logs now."""
        self._out_of_range += [(self._membership.held[each], True) for each in partitions]

    async def _relocate(self, owned: ArrivingClaim, truncated: bool) -> list[Fetched]:
        """Continue at an existing offset after the next one was out of range."""
        claim, was = owned.claim, owned.ahead
        partition = claim.partition
        try:
            retained = await Retained.of(self._member, self._start, partition)
        except (KafkaException, LookupError) as error:
            self._has_failed = True
            self._troubles.note(str(partition), reason_of(error, self._options, partition.topic))
            if truncated:  # read again, the offset would be taken for one of the present log
                self._out_of_range.append((owned, truncated))
            else:
                owned.restart()
            return []
        retained = retained._replace(is_truncated=truncated)
        if self._membership.owned(claim) is not owned:
            return []
        if retained.has(was):
            owned.skip_confirmation()
            owned.restart()
            return []
        if retained.start is None:
            self._standing.add(owned)
            self._seen = 0
            self._troubles.note(str(partition), retained.why_not(partition, was))
            return []
        start = retained.relocate(self._options.group, partition, was, self._start)
        if retained.is_other_log(was):
            self._membership.replace(owned, start)
            return []
        taken = owned.take(owned.count, LONG_SPAN).records if owned.count else ()
        owned.move(start)
        return [Fetched(claim, taken, start)]
