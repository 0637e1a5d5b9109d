"""Taking what has arrived, from the claims in turns.

1. librdkafka hands out the partitions that it reads in stretches of a megabyte. What arrives waits
   with its claim, and a fetch takes a share from each. While one that is asked for has nothing, the
   fetch reads ahead through the others' records, up to `AHEAD` of them or `AHEAD_BYTES`.
2. A claim of which so many records wait, and none is asked for, is not read until it is.
3. Records count only for the claim that was placed before they were read, so what a call in the
   thread has read is sorted before others are placed. An ended claim drops what has arrived; the
   next one of its partition is read from its own position.
4. A settled span of the stored map is passed if it is long.
5. An offset that is no longer retained continues at the start point, and the gap is told. Behind
   the end of the log, the log is another one, and so is the claim.
6. Delivering never suspends, so a cancelled fetch has delivered nothing.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from confluent_kafka import KafkaException

from ..._clients.confluent.errors import is_out_of_range, trouble_of
from ..._clients.confluent.records import runs
from ..._core.clock import LOOP_CLOCK
from ..._core.say import say
from ..._core.source import Fetched

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from ..._clients.confluent.member import GroupMember
    from ..._clients.confluent.options import GroupOptions
    from ..._clients.confluent.reader import PartitionReader
    from ..._clients.confluent.records import Run
    from ..._clients.kafka_groups.starts import StartPoint
    from ..._core.source import SourceClaim, TopicPartition
    from ..troubles import Troubles
    from .membership import GroupClaims
    from .owned import ArrivingClaim

logger = logging.getLogger("penstock.sources.kafka_confluent")

LEAST_SHARE = 50
"""Records; asking for fewer costs more than they do."""
LONG_SPAN = 10_000
"""Offsets from which a settled span is passed by reading anew, which gives up what was fetched."""
AHEAD = 10_000
"""Records that wait with claims so that the others have theirs."""
AHEAD_BYTES = 1 << 24
"""Bytes of them, estimated from the newest."""
CHUNK = 100
"""Records that are taken from the client at once. Its messages are objects that the garbage collector
visits: with five times as many a record takes a fifth more time.
"""
LOOKS = 20
"""Chunks of one fetch, which the loop waits for."""
WAIT = 0.1
"""Seconds in the client's thread, until everything is looked at again."""
RETRY = 0.2
"""Seconds after an error of a partition, before it is read again."""

_GONE = (
    "%s: %s: %d, which was next, is no longer retained (%d is the first that is): the offsets up "
    "to %d were never delivered; it continues at %d (start=%s)"
)
_OTHER_LOG = "%s: %s ends at %d, before %d, which was next: it begins again at %d (start=%s)"
_STANDS = "the next offset of %s, %d, is not retained (%d to %d are), and start='committed'"


class ShareFetcher:
    """Fetches the records of a membership's claims."""

    def __init__(
        self,
        reader: PartitionReader,
        member: GroupMember,
        membership: GroupClaims,
        *,
        options: GroupOptions,
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
        """The claims that are read."""
        self._seen = 0
        """The changes of claims that have been looked at."""
        self._astray: list[ArrivingClaim] = []
        """Claims whose next offsets were out of range."""
        self._standing: set[ArrivingClaim] = set()
        """Those that stay so."""
        self._has_failed = self._is_broken = False
        """Whether a partition could not be read, and whether none could."""

    async def fetch(self, claims: Sequence[SourceClaim], most: int) -> list[Fetched]:
        """Suspend until there is something. A cancelled call has delivered nothing."""
        while True:
            try:
                await self._reader.idle()
                if self._is_broken:
                    await self._repair()
                self._sort(self._reader.kept())
                if self._astray:
                    found = await self._relocated(self._astray[0])
                    del self._astray[0]
                else:
                    await self._place(claims)
                    found = self._taken(claims, most)
                if found:
                    return found
                await self._wait()
            except KafkaException as error:
                self._troubles.note("reading", trouble_of(error, self._options))
                self._is_broken = True
                await LOOP_CLOCK.sleep(RETRY)

    async def _repair(self) -> None:
        """Begin to read anew, after the reader as a whole has failed."""
        self._placed = {}
        self._seen = 0
        await self._reader.clear()
        self._is_broken = False
        self._troubles.note("reading", None)

    async def _wait(self) -> None:
        if self._has_failed:
            self._has_failed = False
            await LOOP_CLOCK.sleep(RETRY)
        elif not self._astray:
            await self._reader.wait(WAIT)

    # -- what is read ------------------------------------------------------------------------------

    async def _place(self, claims: Sequence[SourceClaim]) -> None:
        """Read the claims that are held, and want to be, from where they are."""
        held = self._membership.held
        for claim in claims:
            if (owned := self._membership.owned(claim)) is not None and owned.is_aside:
                owned.set_aside(aside=False)
                self._seen = 0
        if self._seen == self._membership.changes and not self._moved():
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
            partition: each.ahead
            for partition, each in wanted.items()
            if self._placed.get(partition) is not each or each.has_to_move
        }
        for each in wanted.values():
            each.is_placed()
        self._placed = wanted
        if removed or placed:
            await self._reader.place(removed, placed)

    def _moved(self) -> bool:
        return any(each.has_to_move for each in self._placed.values())

    # -- what is taken -----------------------------------------------------------------------------

    def _taken(self, claims: Sequence[SourceClaim], most: int) -> list[Fetched]:
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
        """Read until there is enough of the claims that are asked for, or nothing more."""
        for _ in range(LOOKS):
            waiting = sum([owned.count for owned in asked])
            is_short = any(not (owned.has_news or owned.at_end) for owned in asked)
            if waiting >= (AHEAD if is_short else most):
                return
            if waiting and sum([owned.bytes for owned in asked]) >= AHEAD_BYTES:
                return
            messages = self._reader.take(CHUNK)
            if not messages:
                return
            self._sort(messages)

    def _sort(self, messages: Sequence[Any]) -> None:
        for run in runs(messages):
            owned = self._placed.get(run.partition)
            if owned is None or self._membership.owned(owned.claim) is not owned:
                continue  # of a claim that has ended
            if run.error is not None:
                self._fail(owned, run)
            elif not owned.has_to_move:
                self._troubles.note(str(run.partition), None)
                owned.arrive(run)

    def _fail(self, owned: ArrivingClaim, run: Run) -> None:
        """Note an error of a partition, which stays where it is: librdkafka may pass a record that
        it cannot read.
        """
        assert run.error is not None
        if is_out_of_range(run.error):
            self._astray.append(owned)
            return
        self._has_failed = True
        self._troubles.note(
            str(run.partition), trouble_of(run.error, self._options, run.partition.topic)
        )
        owned.read_anew()

    def _set_aside(self, asked: Sequence[ArrivingClaim]) -> None:
        for owned in self._placed.values():
            is_full = owned.count >= AHEAD or owned.bytes >= AHEAD_BYTES
            if is_full and owned not in asked:
                owned.set_aside(aside=True)
                self._seen = 0

    # -- offsets out of range ----------------------------------------------------------------------

    async def _relocated(self, owned: ArrivingClaim) -> list[Fetched]:
        """Continue where there are records, after the next offset was out of range."""
        claim, was = owned.claim, owned.ahead
        partition = claim.partition
        try:
            first = (await self._member.beginnings([partition]))[partition]
            end = (await self._member.ends([partition]))[partition]
            start = (await self._start.offsets(self._member, [partition])).get(partition)
        except (KafkaException, LookupError) as error:
            self._has_failed = True
            self._troubles.note(str(partition), trouble_of(error, self._options, partition.topic))
            owned.read_anew()
            return []
        if self._membership.owned(claim) is not owned:
            return []
        if first <= was <= end:
            owned.read_anew()
            return []
        if start is None:
            self._standing.add(owned)
            self._seen = 0
            self._troubles.note(str(partition), _STANDS % (partition, was, first, end))
            return []
        named = (self._options.group, partition)
        start = max(first, start)
        if was > end:
            say(logger, logging.ERROR, _OTHER_LOG, *named, end, was, start, self._start)
            self._membership.replace(owned, start)
            return []
        say(logger, logging.ERROR, _GONE, *named, was, first, start - 1, start, self._start)
        taken = owned.take(owned.count, LONG_SPAN).records if owned.count else ()
        owned.move(start)
        return [Fetched(claim, taken, start)]
