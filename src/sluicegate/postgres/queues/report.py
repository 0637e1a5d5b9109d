"""Explains why the keys and the slots of a queue wait. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..schema.contents import LOST_JOBS
from .ring import gaps

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .stats import (
        LaneStats,
        MemberStats,
        OpenTransaction,
        QueueStats,
        RangeStats,
        ScheduleStats,
        StoredQueue,
    )

LONG = 30.0
"""Age in seconds from which an open transaction is reported."""
MOST_NAMED = 3


@dataclass(frozen=True, slots=True)
class QueueReport:
    """A queue, and the reasons why its keys wait."""

    queue: StoredQueue
    stats: QueueStats
    lanes: tuple[LaneStats, ...]
    """Keys with work: blocked and parked ones first, then leased, ready and delayed ones."""
    members: tuple[MemberStats, ...]
    ranges: tuple[RangeStats, ...]
    """The owners of slots, by group."""
    writer: OpenTransaction | None
    """The oldest open transaction that has written jobs, which are invisible until it commits."""
    snapshot: OpenTransaction | None
    """The transaction with the oldest snapshot, which keeps vacuum from removing handled jobs."""
    key: str | None = None
    """The requested key."""
    why_key_has_no_lane: str | None = None
    schedules: tuple[ScheduleStats, ...] = ()
    """At most 1,000: those with the next ticks first, and paused ones at the end."""

    @property
    def is_routed(self) -> bool:
        """Whether keys are routed to the owners of their slots."""
        return self.queue.settings.sticky and not self.queue.settings.ordering_required

    @property
    def notes(self) -> tuple[str, ...]:
        """The reasons that hold back the whole queue, or much of it."""
        return tuple(self._notes())

    def reason(self, lane: LaneStats) -> str:
        """Return the reason why this key waits, or the owner of its lease."""
        if lane.state in {"blocked", "parked"}:
            return self._why_stopped(lane)
        if lane.lease_left is not None:
            return _why_leased(lane)
        if self.stats.is_paused:
            return "the queue is paused"
        if lane.due_in > 0:
            return self._why_delayed(lane)
        if self._is_full:
            return f"max_in_flight={self.queue.settings.max_in_flight} leases are in use"
        if self.is_routed and (why := self._why_not_routed(lane.slot)) is not None:
            return why
        if not self._live:
            return "no consumer is live"
        return "ready: the next claim may lease it"

    # -- a key -------------------------------------------------------------------------------------

    def _why_stopped(self, lane: LaneStats) -> str:
        since = f"{lane.state} for {lane.stopped or 0:.0f} s"
        tries = f" after {lane.attempts} attempts" if lane.attempts else ""
        holds = ""
        if lane.lease_left is not None and lane.lease_left > 0:
            holds = f"; {lane.owner} still has a lease, {lane.lease_left:.0f} s left"
        command = "unblock" if lane.state == "blocked" else "unpark"
        why = lane.reason or "no reason was given"
        return f"{since}{tries}: {why}{holds}; `sluicegate queue {command}` continues it"

    def _why_delayed(self, lane: LaneStats) -> str:
        rate = self.queue.settings.key_rate
        if rate is not None and lane.due_in <= 1 / rate and not lane.attempts:
            return f"key_rate={rate:g} a second: its next job starts in {lane.due_in:.1f} s"
        return f"backs off for {lane.due_in:.1f} s after {lane.attempts} attempts"

    def _why_not_routed(self, slot: int) -> str | None:
        """Return the reason why no group serves the slot; `None` if one does."""
        found = [each for each in self.ranges if each.lo <= slot <= each.hi]
        reasons = [each.why_not_served for each in found]
        if None in reasons:
            return None
        told = [f"group {each.group}: {why}" for each, why in zip(found, reasons, strict=True)]
        return f"slot {slot}: {'; '.join(told) or 'no consumer owns it'}"

    # -- the queue ---------------------------------------------------------------------------------

    @property
    def _live(self) -> list[MemberStats]:
        return [each for each in self.members if each.is_live]

    @property
    def _is_full(self) -> bool:
        most = self.queue.settings.max_in_flight
        return most is not None and self.stats.leased >= most

    def _notes(self) -> Iterator[str]:
        settings, stats = self.queue.settings, self.stats
        if self.why_key_has_no_lane is not None:
            yield f"the key {self.key!r}: {self.why_key_has_no_lane}"
        if stats.is_paused:
            yield "the queue is paused: `sluicegate queue resume` continues it"
        if stats.without_lane:
            yield LOST_JOBS % stats.without_lane
        if not self._live and (stats.jobs or self.schedules):
            yield self._why_no_consumer()
        if self._is_full:
            yield f"max_in_flight={settings.max_in_flight} leases are in use"
        if settings.max_depth is not None and stats.jobs >= settings.max_depth:
            yield f"max_depth={settings.max_depth} is reached: enqueues fail"
        if stats.bells:
            yield f"{stats.bells} new keys wait in bells that the next claims merge into lanes"
        if stats.next_due is not None:
            yield f"{stats.delayed} jobs are delayed; the next is due in {stats.next_due:.0f} s"
        yield from self._notes_of_schedules()
        if settings.ordering_required and (settings.sticky or self.ranges):
            yield "ordering_required makes sticky routing and its ranges inactive"
        if self.is_routed:
            yield from self._notes_of_ranges()
        yield from self._notes_of_transactions()

    def _notes_of_schedules(self) -> Iterator[str]:
        paused = [each.name for each in self.schedules if each.is_paused]
        for each in self.schedules[:1]:
            if not each.is_paused and each.due_in is not None:
                when = f"in {each.due_in:.0f} s"
                if each.due_in < 0:
                    when = f"{-each.due_in:.0f} s overdue: a consumer fires it"
                yield f"the next tick of the schedule {each.name} is {when}"
        if paused:
            told = ", ".join(paused[:MOST_NAMED])
            more = f" and {len(paused) - MOST_NAMED} more" if len(paused) > MOST_NAMED else ""
            yield (
                f"paused schedules: {told}{more}; `sluicegate queue resume` with --schedule "
                "continues one"
            )

    def _why_no_consumer(self) -> str:
        if not self.members:
            return "no consumer is registered: none was started, or all have left"
        last = min(self.members, key=lambda each: each.seen)
        return (
            f"no consumer is live; the last one, {last.consumer} of the group "
            f"{last.group}, was seen {last.seen:.0f} s ago"
        )

    def _notes_of_ranges(self) -> Iterator[str]:
        for group in sorted({each.group for each in self.ranges}):
            ranges = [each for each in self.ranges if each.group == group]
            found = list(gaps((each.lo, each.hi) for each in ranges))
            if found:
                told = ", ".join(f"{lo}-{hi}" for lo, hi in found[:MOST_NAMED])
                more = f" and {len(found) - MOST_NAMED} more" if len(found) > MOST_NAMED else ""
                yield f"group {group}: no consumer owns the slots {told}{more}"
            reasons = (each.why_not_served for each in ranges)
            for why in dict.fromkeys(why for why in reasons if why is not None):
                yield f"group {group}: {why}"
        if not self.ranges:
            yield "no consumer owns a slot: no ranges are assigned"

    def _notes_of_transactions(self) -> Iterator[str]:
        if self.writer is not None:
            yield f"an open transaction has written jobs, invisible until it commits ({self.writer})"
        if self.snapshot is not None and (self.snapshot.age or 0) >= LONG:
            yield f"an old snapshot keeps vacuum from removing handled jobs ({self.snapshot})"


def _why_leased(lane: LaneStats) -> str:
    left = lane.lease_left or 0
    if left <= 0:
        return f"the lease of {lane.owner} expired {-left:.0f} s ago: the next claim may take it"
    group = f" of the group {lane.group}" if lane.group else ""
    return f"leased by {lane.owner}{group}, {left:.0f} s left"
