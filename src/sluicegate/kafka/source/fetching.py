"""Fetches the records that have arrived, from all claims in turn.

1. Each partition is read separately, for its share: aiokafka would return all records of one
   partition before it reads the next. Partitions without arrived records are not read, since that
   would check all others as well.
2. Records are delivered only if the claim is the same before and after the read. Otherwise a seek
   returns them, because aiokafka would continue after them.
3. A seek skips a settled span of the stored map if the span is long.
4. If an offset is no longer retained, reading continues at the start point, and the gap is
   reported. If the offset is beyond the end of the log, the log was replaced, and so is the claim.
   These checks suspend, so they are made before records are taken: a cancelled fetch has taken
   nothing.
5. If aiokafka cannot decode a record, the partition is fetched again from its next offset, and each
   record is decoded by itself. This suspends, too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiokafka.errors import OffsetOutOfRangeError

from ..._core.clock import LOOP_CLOCK
from ..._core.source import Fetched
from ..client.errors import reason_of
from ..client.session import KafkaError, Session, Undecodable
from ..groups import LEAST_SHARE, LONG_SPAN, Retained

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..._core.source import SourceClaim, SourceRecord, TopicPartition, Troubles
    from ..arguments import StartPoint
    from ..client.options import MemberOptions
    from .membership import Membership, OwnedClaim

WAIT = 1.0
"""The longest time in seconds between two rounds, without any event."""
RETRY = 0.2
"""Delay in seconds after an error, which aiokafka reports with each response of a broker."""


class Fetcher:
    """Fetches the records of a membership's claims."""

    def __init__(
        self,
        session: Session,
        membership: Membership,
        options: MemberOptions,
        start: StartPoint,
        troubles: Troubles,
    ) -> None:
        self._session = session
        self._membership = membership
        self._options = options
        self._start = start
        self._troubles = troubles
        self._out_of_range: OwnedClaim | None = None
        """A claim whose next offset is out of range."""
        self._undecoded: OwnedClaim | None = None
        """A claim with a record that aiokafka cannot decode."""
        self._has_failed = False
        """Whether a partition could not be read in this round."""
        self._unreadable: dict[TopicPartition, int | None] = {}
        """The unreadable partitions, each with the time of its last response."""

    async def fetch(self, claims: Sequence[SourceClaim], most: int) -> list[Fetched]:
        """Deliver records; suspend until there are some. A cancelled call has delivered nothing."""
        while not (found := await self._next(claims, most)):
            if self._has_failed:
                await LOOP_CLOCK.sleep(RETRY)
            elif self._out_of_range is None and self._undecoded is None:
                await self._session.wait(WAIT)
        return found

    async def _next(self, claims: Sequence[SourceClaim], most: int) -> list[Fetched]:
        """Handle one claim that is out of range or has an undecodable record, or make one round.
        Only the former suspend.
        """
        self._has_failed = False
        fetched: Fetched | None
        if self._out_of_range is not None:
            owned, self._out_of_range = self._out_of_range, None
            fetched = await self._relocate(owned)
        elif self._undecoded is not None:
            owned, self._undecoded = self._undecoded, None
            fetched = None
            if owned.claim in claims:
                fetched = await self._take_singly(owned, most)
        else:
            return await self._take_all(claims, most)
        return [] if fetched is None else [fetched]

    async def _take_all(self, claims: Sequence[SourceClaim], most: int) -> list[Fetched]:
        found: list[Fetched] = []
        if (fault := self._session.fault()) is not None:
            self._troubles.note("group", reason_of(fault, self._options))
        self._look_at_unreadable()
        arrived = [claim for claim in claims if self._session.has_arrived(claim.partition)]
        share = max(LEAST_SHARE, -(-most // max(1, len(arrived))))
        for claim in arrived:
            if most <= 0:
                break
            owned = self._membership.owned(claim)
            fetched = None if owned is None else await self._take(owned, min(share, most))
            if fetched is not None:
                found.append(fetched)
                most -= len(fetched.records)
        return found

    async def _take(self, owned: OwnedClaim, most: int) -> Fetched | None:
        claim = owned.claim
        try:
            records = await self._session.take(claim.partition, most)
        except OffsetOutOfRangeError:
            self._out_of_range = owned
            return None
        except Undecodable:
            self._undecoded = owned
            return None
        except KafkaError as error:
            self._fail(owned, error)
            return None
        if self._membership.owned(claim) is not owned:
            if records:
                self._session.seek(claim.partition, records[0].offset)
            return None
        return self._deliver(owned, records)

    async def _take_singly(self, owned: OwnedClaim, most: int) -> Fetched | None:
        claim = owned.claim
        try:
            records, reached = await self._session.take_singly(
                claim.partition, owned.next_offset, most
            )
        except KafkaError as error:
            self._fail(owned, error)
            return None
        if self._membership.owned(claim) is not owned:
            return None
        self._session.seek(claim.partition, reached)
        return self._deliver(owned, records)

    def _fail(self, owned: OwnedClaim, error: KafkaError) -> None:
        """Record an error of a partition, and stay at its position.

        aiokafka may skip a record that it cannot read.
        """
        partition = owned.claim.partition
        self._has_failed = True
        self._unreadable[partition] = self._session.answered_at(partition)
        self._troubles.note(str(partition), reason_of(error, self._options))
        if self._session.position(partition) not in {None, owned.next_offset}:
            self._session.seek(partition, owned.next_offset)

    def _look_at_unreadable(self) -> None:
        for partition, answered in list(self._unreadable.items()):
            if self._session.answered_at(partition) != answered:
                del self._unreadable[partition]
                self._troubles.note(str(partition), None)

    def _deliver(self, owned: OwnedClaim, records: Sequence[SourceRecord]) -> Fetched | None:
        claim = owned.claim
        after = records[-1].offset + 1 if records else owned.next_offset
        reached = max(after, self._session.position(claim.partition) or 0)
        if reached == owned.next_offset:
            return None
        passed = claim.pass_settled(reached, LONG_SPAN)
        if passed > reached:
            self._session.seek(claim.partition, passed)
        owned.advance(passed)
        self._troubles.note(str(claim.partition), None)
        return Fetched(claim, records, passed)

    async def _relocate(self, owned: OwnedClaim) -> Fetched | None:
        """Continue at an existing offset after the next one was out of range."""
        claim, was = owned.claim, owned.next_offset
        partition = claim.partition
        try:
            retained = await Retained.of(self._session, self._start, partition)
        except KafkaError as error:
            self._fail(owned, error)
            return None
        if self._membership.owned(claim) is not owned or retained.has(was):
            return None
        if retained.start is None:
            self._session.pause(partition)
            self._troubles.note(str(partition), retained.why_not(partition, was))
            return None
        start = retained.relocate(self._options.group, partition, was, self._start)
        if retained.is_other_log(was):
            self._membership.replace(owned, start)
            return None
        self._session.seek(partition, start)
        owned.advance(start)
        return Fetched(claim, (), start)
