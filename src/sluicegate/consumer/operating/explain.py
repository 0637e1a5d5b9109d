"""Why a consumer's partitions do not advance: each reason, and the condition that ends it.

1. The oldest unfinished message determines the position of its partition. If it waits in a lane,
   the cause is the message that occupies its key, possibly in another partition.
2. Nothing is fetched while the partition is paused or being revoked, the window is full, or the
   source reports a problem.
3. An explanation costs a few passes over the window, and changes nothing.
4. Ages are found by sampling: no time is recorded when a message begins. An age is therefore a
   minimum, less than one sampling period too short.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from ..._core.checks import shown
from ..._core.logs import for_log
from ..._core.order.keys import shown as shown_key
from ..jobs.interjections import Interjection
from .report import WaitCause, WaitReason

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ..._core.source import TopicPartition
    from ..lanes.message import Message
    from ..progress.claim import Claim
    from .health import Heartbeat
    from .places import Places, Standing


MOST_NAMED = 5
"""The maximum number of parked keys that are listed."""


@dataclass(frozen=True, slots=True)
class OldestRecord:
    """The first unfinished record of a partition; the position stays at it."""

    offset: int
    key: object
    """The key that determines its order; `None` while the record is being taken in."""
    attempt: int
    seconds: float | None
    """Minimum time for which it has been the oldest; sampled."""

    def __str__(self) -> str:
        since = "" if self.seconds is None else f", the oldest for at least {self.seconds:.1f} s"
        return f"offset {self.offset}, key {shown(self.key)}, attempt {self.attempt}{since}"


@dataclass(frozen=True, slots=True)
class PartitionExplanation:
    """The position of a partition, and why it does not advance."""

    partition: TopicPartition
    position: int
    committed: int
    """The stored position."""
    unfinished: int
    """Records that were delivered and are not settled."""
    oldest: OldestRecord | None
    causes: tuple[WaitCause, ...]
    """The cause of the oldest unfinished record comes first."""

    def lines(self) -> Iterator[str]:
        """Yield the lines of the explanation."""
        stored = "" if self.committed == self.position else f" (stored: {self.committed})"
        yield f"{self.partition}: position {self.position}{stored}, {self.unfinished} unfinished"
        if self.oldest is not None:
            yield f"  oldest: {self.oldest}"
        yield from (f"  {cause}" for cause in self.causes)


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a consumer does not advance, by partition. `str()` is for operators."""

    name: str
    messages: int
    """Number of unsettled messages."""
    causes: tuple[WaitCause, ...]
    """Causes that affect the whole consumer."""
    partitions: tuple[PartitionExplanation, ...]

    @property
    def reasons(self) -> frozenset[str]:
        """All reasons, of the consumer and of its partitions, such as `"paused"`."""
        own = [each.causes for each in self.partitions]
        return frozenset([cause.reason for causes in (self.causes, *own) for cause in causes])

    def __str__(self) -> str:
        lines = [f"{self.name}: {self.messages} messages inside"]
        lines += [f"  {cause}" for cause in self.causes]
        lines += [f"  {line}" for partition in self.partitions for line in partition.lines()]
        return "\n".join(lines)


class Explainer:
    """Builds the explanation of a consumer at one moment."""

    def __init__(self, places: Places, samples: Samples, now: float, heart: Heartbeat) -> None:
        self._places = places
        self._samples = samples
        self._now = now
        claims = tuple(places.claims)
        self._claims = claims
        self._oldest = places.oldest_of(claims)
        queued = [
            standing.message
            for standing in self._oldest.values()
            if standing.reason is WaitReason.QUEUED_BEHIND
        ]
        self._holders = places.holders_of(queued)
        self._beside: dict[Claim, list[Standing]] = {}
        """Interjections, and events without room for their jobs."""
        for standing in places.busy():
            message = standing.message
            if standing.reason is WaitReason.NO_ROOM or isinstance(message, Interjection):
                self._beside.setdefault(message.claim, []).append(standing)
        self._unread = frozenset(places.claims.unread())
        self._parked: dict[int, list[object]] = {}
        for parked in places.schedule.parked:
            self._parked.setdefault(id(parked.lanes), []).append(shown_key(parked.key))
        self._heart = heart

    def explanation(self) -> Explanation:
        """Return the explanation of all partitions."""
        places = self._places
        causes = tuple(self._of_all())
        return Explanation(
            places.run.name,
            places.schedule.window.messages,
            causes,
            tuple([self._partition(claim, is_held=bool(causes)) for claim in self._claims]),
        )

    def _of_all(self) -> Iterator[WaitCause]:
        """Yield the causes that affect the whole consumer."""
        places, window = self._places, self._places.schedule.window
        if not self._heart.is_beating:
            yield WaitCause(WaitReason.NOT_RUNNING)
        if places.run.is_ending:
            yield WaitCause(WaitReason.DRAINING)
        if not (self._claims or places.claims.are_short):
            yield WaitCause(WaitReason.NOT_ASSIGNED)
        if places.claims.trouble is not None:
            yield WaitCause(WaitReason.SOURCE_TROUBLE, f"({places.claims.trouble})")
        if (trouble := places.workers.outage) is not None:
            yield WaitCause(WaitReason.DESTINATION_TROUBLE, f"({trouble})")
        if window.is_full:
            messages = f"{window.messages} of {window.max_messages} messages"
            sizes = f"{window.bytes} of {window.max_bytes} bytes"
            yield WaitCause(WaitReason.WINDOW_FULL, f"({messages}, {sizes})")

    def _partition(self, claim: Claim, *, is_held: bool) -> PartitionExplanation:
        tracker = claim.tracker
        head = tracker.head()
        causes = [] if head is None else [self._of_oldest(claim)]
        causes += self._holding(claim)
        if not causes and not is_held:
            causes.append(WaitCause(WaitReason.NOTHING_TO_DO))
        causes += self._jobs(claim)
        causes += self._notes(claim)
        return PartitionExplanation(
            claim.partition,
            tracker.seen_position(),
            claim.committed.offset,
            tracker.unfinished,
            None if head is None else self._record(claim, head),
            tuple(causes),
        )

    def _record(self, claim: Claim, head: int) -> OldestRecord:
        standing = self._oldest.get(claim)
        offset, seconds = claim.tracker.offset_of(head), self._samples.stood(claim, self._now)
        if standing is None:
            return OldestRecord(offset, None, 1, seconds)
        message = standing.message
        return OldestRecord(offset, message.order_key, message.attempt, seconds)

    def _holding(self, claim: Claim) -> Iterator[WaitCause]:
        """Yield the reasons why nothing is fetched from a partition, regardless of its messages."""
        if claim.is_closing and not self._places.run.is_ending:
            yield WaitCause(WaitReason.DRAINING, "(the partition is being revoked)")
        if self._places.claims.is_paused(claim):
            yield WaitCause(WaitReason.PAUSED)
        if claim in self._unread:
            jobs = self._places.settler.jobs
            if jobs is not None and jobs.reads_state:
                told = jobs.reading_progress(claim)
                yield WaitCause(WaitReason.READING_STATE, f"({told})" if told else "")
            else:
                yield WaitCause(WaitReason.READING_PARKED)

    def _jobs(self, claim: Claim) -> Iterator[WaitCause]:
        """Yield the causes other than the oldest unfinished record."""
        oldest = self._oldest.get(claim)
        for standing in self._beside.get(claim, ()):
            if isinstance(standing.message, Interjection):
                cause = self._cause(standing)
                told = f"({cause.reason_text})"
                yield WaitCause(WaitReason.INTERJECTION, told, cause.seconds)
            elif oldest is None or standing.message is not oldest.message:
                cause = self._cause(standing)
                told = f"by {standing.message.coordinates} ({cause.reason_text})"
                yield WaitCause(WaitReason.HELD, told, cause.seconds)

    def _notes(self, claim: Claim) -> Iterator[WaitCause]:
        """Yield notes for operators that do not explain a wait."""
        if (parked := self._parked.get(id(claim.lanes))) is not None:
            more = ", ..." if len(parked) > MOST_NAMED else ""
            named = ", ".join([shown(key) for key in parked[:MOST_NAMED]]) + more
            yield WaitCause(WaitReason.PARKED, f"({len(parked)} keys: {named})")
        if claim.is_cut:
            size = len(claim.committed.metadata)
            yield WaitCause(WaitReason.MAP_CUT, f"(the stored map has {size} bytes)")

    # -- the oldest unfinished message -------------------------------------------------------------

    def _of_oldest(self, claim: Claim) -> WaitCause:
        standing = self._oldest.get(claim)
        if standing is None:  # dropped, or still being taken in
            return WaitCause(WaitReason.DRAINING if claim.is_closing else WaitReason.ARRIVING)
        if standing.reason is WaitReason.QUEUED_BEHIND:
            return self._queued(standing.message)
        return self._cause(standing)

    def _queued(self, message: Message) -> WaitCause:
        holder = self._holders.get(message)
        if holder is None:  # its parked key is being replayed, and the next record is being read
            return WaitCause(WaitReason.QUEUED_BEHIND, "earlier records of its key")
        other, cause = holder.message, self._cause(holder)
        whose = " of an earlier claim" if other.claim.is_closed else ""
        return WaitCause(WaitReason.QUEUED_BEHIND, f"{other.coordinates}{whose} ({cause})")

    def _cause(self, standing: Standing) -> WaitCause:
        message, reason = standing.message, standing.reason
        if standing.due is not None:
            return self._until(standing, max(0.0, standing.due - self._now))
        seconds = self._samples.age(message, self._now)
        since = "" if seconds is None else f"for at least {seconds:.1f} s"
        if standing.error is not None:
            told = f"({for_log(standing.error)})"
            return WaitCause(reason, f"{since} {told}".strip(), seconds)
        if reason in (WaitReason.JOB, WaitReason.NO_ROOM) and (jobs := self._places.settler.jobs):
            told = jobs.job_of(message)
            return WaitCause(reason, f"{since} {told and f'({told})'}".strip(), seconds)
        return WaitCause(reason, since, seconds)

    def _until(self, standing: Standing, left: float) -> WaitCause:
        """Return the cause of a wait that ends at most `left` seconds from now."""
        if standing.reason is WaitReason.FORMING:
            told = "(without max_wait)" if math.isinf(left) else f"(for {left:.1f} s at most)"
            return WaitCause(standing.reason, told, None if math.isinf(left) else left)
        error = standing.message.attempts.error
        told = "" if error is None else f" after {for_log(error)}"
        return WaitCause(standing.reason, f"for {left:.1f} s{told}", left)


class Seen(NamedTuple):
    """The state of a message, and the time at which it was first seen in it."""

    reason: WaitReason
    attempt: int
    since: float


class Samples:
    """For each busy message and each position, the time since which it is unchanged."""

    def __init__(self) -> None:
        self._messages: dict[Message, Seen] = {}
        self._heads: dict[Claim, tuple[int | None, float]] = {}
        self.taken_at = 0.0

    def take(self, now: float, busy: Iterable[Standing], claims: Iterable[Claim]) -> None:
        """Record the states of messages and positions at `now`; drop all others."""
        self._messages = {
            standing.message: self._seen(standing.message, standing.reason, now)
            for standing in busy
        }
        heads: dict[Claim, tuple[int | None, float]] = {}
        for claim in claims:
            head, since = claim.tracker.head(), now
            if claim in self._heads and self._heads[claim][0] == head:
                since = self._heads[claim][1]
            heads[claim] = head, since
        self._heads, self.taken_at = heads, now  # assigned together, since other threads read them

    def _seen(self, message: Message, reason: WaitReason, now: float) -> Seen:
        seen = self._messages.get(message)
        attempt = message.attempt
        if seen is not None and seen.reason is reason and seen.attempt == attempt:
            return seen
        return Seen(reason, attempt, now)

    def since(self) -> dict[Message, float]:
        """Return the time at which each busy message was first seen in its state."""
        return {message: seen.since for message, seen in self._messages.items()}

    def age(self, message: Message, now: float) -> float | None:
        """Return the minimum time in seconds for which a busy message has been in its state."""
        seen = self._messages.get(message)
        return None if seen is None else now - seen.since

    def stood(self, claim: Claim, now: float) -> float | None:
        """Return the minimum time in seconds for which the first unfinished record has not
        changed.
        """
        head, since = self._heads.get(claim, (None, now))
        return None if head is None else now - since
