"""The claims of this process, which its source begins and ends.

1. A revoke closes the claims. Their queued messages leave immediately; running ones are cancelled
   at the deadline. The source then commits the positions of that moment.
2. A loss ends the claims immediately. Messages that still run keep their keys until they end, and
   are not settled.
3. A pause belongs to the partition, not to the claim: a partition that is assigned again is still
   paused.
4. Claims take turns at being fetched from.
5. The stored map of a claim lists settled records beyond the stored position. After a crash or a
   rebalance they are skipped, and only the other records up to the end of the map run again. This
   *crash window* is reported once it was passed.
"""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, cast

from ..._core.clock import wait_until
from ..._core.logs import for_log, log_safely, named
from .claim import Claim

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from ..._core.observer import ClaimChange
    from ..._core.source import Position, SourceCapabilities, SourceClaim, TopicPartition
    from ..lanes.schedule import Schedule
    from ..run import Run
    from .claim import Owner
    from .draining import Drainer


logger = logging.getLogger("sluicegate.consumer")

_CHANGED = "%s: partitions %s: %s"
_FOREIGN = "%s: the stored map of %s cannot be read (%s); its records run again"

_numbers = count(1)


class Claims:
    """The host of a source: begins and ends claims."""

    def __init__(
        self,
        schedule: Schedule,
        drainer: Drainer,
        owner: Owner,
        run: Run,
        drain: float,
        *,
        reads_parked: bool = False,
        capabilities: SourceCapabilities,
    ) -> None:
        self._schedule = schedule
        self._drainer = drainer
        self._owner = owner
        self._run = run
        self._changed = run.assignment
        self._drain = drain
        self._capabilities = capabilities
        self._claims: dict[TopicPartition, Claim] = {}
        self._fetchable: list[Claim] | None = None
        """The claims to fetch from; `None`: to be found again, after a change."""
        self._turn = 0
        self._paused: set[TopicPartition] = set()
        self._all_paused = False
        self._unread: set[Claim] | None = set() if reads_parked else None
        """Claims whose parked keys or state have not been read yet; nothing is fetched for them."""
        self._reported: set[Claim] = set()
        """Claims whose crash window was reported."""
        self._past = Deliveries()
        """Deliveries of claims that have ended."""
        self.trouble: str | None = None
        """Why the source cannot deliver, in the source's own words."""
        self.was_assigned = False
        self.left_work = False
        """Whether a claim ended behind the end of the source with messages that are delivered again:
        not settled, or lost before their position was stored.
        """

    # -- the host of the source --------------------------------------------------------------------

    @property
    def room_bytes(self) -> int:
        """The bytes that the window has room for, at least 1."""
        return self._schedule.window.room_bytes

    def assigned(self, starts: Mapping[TopicPartition, Position]) -> Sequence[SourceClaim]:
        """Begin claims. Raises `ValueError` for a partition that already has one."""
        made: list[Claim] = []
        for partition, start in starts.items():
            old = self._claims.get(partition)
            if old is not None:
                raise ValueError(f"{partition} is claimed already: {old!r}")
            lanes = self._schedule.lanes_for(partition)
            claim = Claim(
                partition,
                next(_numbers),
                start,
                lanes,
                self._owner,
                tells_each=self._capabilities.settles_each,
                foreign_map=self._capabilities.foreign_map,
            )
            claim.pause(paused=partition in self._paused)
            self._claims[partition] = claim
            if self._unread is not None:
                self._unread.add(claim)
            made.append(claim)
        self.was_assigned = True
        self._change()
        self._tell("assigned", made)
        return made

    async def revoked(
        self, claims: Collection[SourceClaim], within: float
    ) -> Mapping[SourceClaim, Position]:
        """Close claims, wait at most `within` or `drain` seconds for running messages, and return
        the positions.
        """
        mine = self._mine(claims)
        for claim in mine:
            claim.close()
        self._drainer.drop(mine, keep_jobs=True)
        self._change()
        self._tell("revoked", mine)
        until = self._run.clock.now() + min(within, self._drain)
        await self._drainer.wait(mine, until)
        return {claim: claim.snapshot() for claim in mine if not claim.is_closed}

    def ended(self, claims: Collection[SourceClaim]) -> None:
        """End claims, revoked or lost. Messages that still run keep their keys."""
        mine = self._mine(claims)
        lost = [claim for claim in mine if not claim.is_closing]
        unsettled = [claim for claim in mine if claim.tracker.unfinished]
        unstored = not self.are_short and any(claim.has_moved for claim in lost)
        self.left_work |= bool(unsettled) or unstored
        for claim in mine:
            claim.end()
            self._reported.discard(claim)
            self._past = _with(self._past, claim)
            del self._claims[claim.partition]
        self.read(*mine)
        if ending := unsettled if self.are_short else mine:
            self._drainer.end(ending)
        self._schedule.forget_idle_lanes(self)
        self._change()
        self._tell("lost", lost)

    def cancelled(self, claim: SourceClaim, offsets: Collection[int]) -> None:
        """Cancel messages of a claim, now or when they arrive; those that were cancelled stay so."""
        for mine in self._mine([claim]):
            self._drainer.cancel(mine, offsets)

    def reported(self, trouble: str | None) -> None:
        """Record why the source cannot deliver; `None` if it can."""
        self.trouble = trouble
        self._run.readiness.fire()

    def _tell(self, change: ClaimChange, claims: Sequence[Claim]) -> None:
        """Log a change of claims, and notify the observers."""
        if not claims or self.are_short:
            return
        name, partitions = self._run.name, [claim.partition for claim in claims]
        log_safely(logger, logging.INFO, _CHANGED, name, change, named(partitions))
        self._run.observers.tell(lambda seen: seen.on_claims(name, change, partitions))
        for claim in claims if change == "assigned" else ():
            if (error := claim.foreign) is not None:
                log_safely(logger, logging.WARNING, _FOREIGN, name, claim.partition, for_log(error))

    def _mine(self, claims: Collection[SourceClaim]) -> list[Claim]:
        known = [cast("Claim", claim) for claim in claims]
        return [claim for claim in known if self._claims.get(claim.partition) is claim]

    # -- the consumer's side -----------------------------------------------------------------------

    def note_source_end(self) -> None:
        """Note that nothing is fetched any more: until now, what a claim left was fetched again."""
        self.left_work = False

    def __iter__(self) -> Iterator[Claim]:
        return iter(tuple(self._claims.values()))

    def __len__(self) -> int:
        return len(self._claims)

    def get(self, partition: TopicPartition) -> Claim | None:
        """Return the claim of a partition that this process owns, or `None`."""
        return self._claims.get(partition)

    @property
    def are_short(self) -> bool:
        """Whether claims are leases of a few records, which the source begins and ends."""
        return self._capabilities.shares == "keys"

    @property
    def may_begin(self) -> bool:
        """Whether the source may be queried for records that begin new claims."""
        return self.are_short and not self._all_paused

    def wanted(self) -> list[Claim]:
        """Return the claims to fetch from, in rotation: the first one of the previous call is now
        last. Copies a list, unless a claim has changed: this is done for each fetch.

        Claims with held-back records of a crowded key come after the others.
        """
        if self._all_paused:
            return []
        if self._fetchable is None:
            unread = self._unread or ()
            self._fetchable = [
                claim
                for claim in self
                if not (claim.is_closing or claim.is_paused or claim in unread)
            ]
        self._turn = at = (self._turn + 1) % max(1, len(self._fetchable))
        wanted = self._fetchable[at:] + self._fetchable[:at]
        if self._schedule.crowded:
            wanted.sort(key=self._schedule.crowded.holds_back)
        return wanted

    def unread(self) -> list[Claim]:
        """Return the claims whose parked keys or state must be read before anything is fetched."""
        return [claim for claim in self._unread or () if not claim.is_closing]

    def read_first(self) -> None:
        """Fetch nothing for current and future claims before their state is `read`."""
        self._unread = {claim for claim in self if not claim.is_closing}
        self._fetchable = None

    def read(self, *claims: Claim) -> None:
        """Record that the parked keys or the state of claims are known, or not needed."""
        if self._unread is not None:
            self._unread.difference_update(claims)
            self._change()

    async def wait_read(self) -> None:
        """Suspend until the parked keys of all open claims are known."""
        while self.unread():
            await wait_until(self._run.clock, math.inf, self._changed)

    def close_all(self) -> list[Claim]:
        """Stop admitting records, for a drain; return the claims.

        The batch being formed stays, and is handled.
        """
        claims = list(self._claims.values())
        for claim in claims:
            claim.close()
        self._fetchable = None
        self._drainer.drop(claims, keep_batch=True, keep_jobs=True)
        return claims

    def pause(self, partitions: Collection[TopicPartition] | None) -> None:
        """Stop fetching from these partitions, including future claims; `None` means all."""
        self._set_paused(partitions, paused=True)

    def resume(self, partitions: Collection[TopicPartition] | None) -> None:
        """Fetch again from these partitions; `None` means all, including those paused by name."""
        self._set_paused(partitions, paused=False)

    def is_paused(self, claim: Claim) -> bool:
        """Whether nothing is fetched for this claim, because it or the whole consumer is paused."""
        return self._all_paused or claim.is_paused

    def _set_paused(self, partitions: Collection[TopicPartition] | None, *, paused: bool) -> None:
        if partitions is None:
            self._all_paused = paused
            partitions = set() if paused else set(self._paused)
        change = self._paused.update if paused else self._paused.difference_update
        change(partitions)
        for partition in partitions:
            if (claim := self._claims.get(partition)) is not None:
                claim.pause(paused=paused)
        self._change()

    def _change(self) -> None:
        """Let the next fetch find its claims again, and restart a waiting one."""
        self._fetchable = None
        self._changed.fire()

    # -- deliveries --------------------------------------------------------------------------------

    def deliveries(self) -> Deliveries:
        """Return the deliveries of all claims, including ended ones."""
        total = self._past
        for claim in self:
            total = _with(total, claim)
        return total

    def passed_windows(self) -> list[CrashWindow]:
        """Return the crash windows that have been passed and were not returned before."""
        new = [
            claim
            for claim in self
            if claim.replay.end > claim.start.offset
            and claim.tracker.next_offset >= claim.replay.end
            and claim not in self._reported
        ]
        self._reported.update(new)
        return [
            CrashWindow(
                claim.partition,
                claim.start.offset,
                claim.replay.end,
                claim.replay.skipped + claim.replay.passed,
                claim.replay.replayed,
            )
            for claim in new
        ]


@dataclass(frozen=True, slots=True)
class CrashWindow:
    """The records of one claim from its stored position to the end of its map."""

    partition: TopicPartition
    start: int
    """The stored position."""
    end: int
    """The offset after the last record of the map."""
    skipped: int
    """Records that were already settled. A span that the source passed over counts by its offsets.
    """
    replayed: int
    """Records that run, possibly for the second time."""

    def __str__(self) -> str:
        return (
            f"{self.partition} continued at {self.start}: up to {self.end}, {self.skipped} records "
            f"were settled before and skipped, {self.replayed} run again"
        )


@dataclass(frozen=True, slots=True)
class Deliveries:
    """Records as delivered by the source, and why some did not run or ran again."""

    received: int = 0
    """Records delivered by the source, including those of a stored map that it did not pass over.
    """
    redelivered: int = 0
    """Records delivered twice within one claim; the second delivery was ignored."""
    skipped: int = 0
    """Records settled earlier according to the stored map. A long span that the source passes over
    without delivering it counts by its offsets, including offsets without a record.
    """
    replayed: int = 0
    """Records in the range of a stored map that were not settled: they run, possibly again."""


def _with(total: Deliveries, claim: Claim) -> Deliveries:
    return Deliveries(
        total.received + claim.tracker.next_index,
        total.redelivered + claim.redelivered,
        total.skipped + claim.replay.skipped + claim.replay.passed,
        total.replayed + claim.replay.replayed,
    )
