"""A consumer's `stats()`: counts and levels, read in any thread."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .._core.source import TopicPartition
    from .claim import Claim
    from .counts import MessageCounts
    from .crash_window import Deliveries
    from .parts import Parts


@dataclass(frozen=True, slots=True)
class InFlight:
    """The messages inside a consumer. Those of all places add up to `messages`."""

    messages: int
    bytes: int
    ready: int
    """May start as soon as a worker is free."""
    running: int
    """In a handler."""
    errands: int
    """In a task of their own: a dead letter, or a parked record, is being written."""
    manual: int
    """Wait for `settle()`."""
    backing_off: int
    blocked: int
    """Poison that keeps its key until `unblock`."""
    waiting: int
    """Behind others of their key."""
    batched: int
    """In batches that no worker has taken yet."""


@dataclass(frozen=True, slots=True)
class PartitionStats:
    """A partition that this process owns."""

    position: int
    """The offset of the first unfinished record."""
    committed: int
    """The stored position."""
    map_bytes: int
    """The size of the stored map of records that are settled beyond it."""
    is_map_cut: bool
    """Whether the last map did not fit. What is missing would run again after a crash."""
    is_paused: bool


@dataclass(frozen=True, slots=True)
class ConsumerStats:
    """A snapshot of a consumer.

    Exact when it is taken in the loop's thread. In another one, its figures may be a few messages
    apart.
    """

    name: str
    counts: MessageCounts
    in_flight: InFlight
    partitions: Mapping[TopicPartition, PartitionStats]
    commits: int
    commit_failures: int
    deliveries: Deliveries
    is_stalled: bool

    def __str__(self) -> str:
        inside, done = self.in_flight, self.counts
        return (
            f"{self.name}: {done.acked} acknowledged, {done.dead_lettered} dead letters, "
            f"{done.parked} parked, {done.terminated} given up, {done.naks} failed tries; "
            f"{inside.messages} inside ({inside.running} running, {inside.ready} ready, "
            f"{inside.waiting} queued, {inside.backing_off} backing off, {inside.blocked} blocked); "
            f"{len(self.partitions)} partitions, {self.commits} commits, "
            f"{self.commit_failures} failed{'; stalled' if self.is_stalled else ''}"
        )


def stats_of(parts: Parts, deliveries: Deliveries, *, is_stalled: bool) -> ConsumerStats:
    """Take a snapshot, in any thread."""
    return ConsumerStats(
        parts.commons.name,
        parts.commons.counts.snapshot(parts.schedule.acknowledged),
        _in_flight(parts),
        {claim.partition: _partition(parts, claim) for claim in parts.claims},
        parts.committer.commits,
        parts.committer.failures,
        deliveries,
        is_stalled,
    )


def _in_flight(parts: Parts) -> InFlight:
    schedule = parts.schedule
    return InFlight(
        messages=schedule.window.messages,
        bytes=schedule.window.bytes,
        ready=len(schedule.ready),
        running=sum([len(slot.messages()) for slot in tuple(parts.workers.slots)]),
        errands=len(parts.errands.running),
        manual=len(parts.settler.manual),
        backing_off=len(schedule.retries),
        blocked=len(schedule.blocked),
        waiting=schedule.waiting,
        batched=len(schedule.formed),
    )


def _partition(parts: Parts, claim: Claim) -> PartitionStats:
    committed = claim.committed
    return PartitionStats(
        position=max(claim.tracker.seen_position(), committed.offset),
        committed=committed.offset,
        map_bytes=len(committed.metadata),
        is_map_cut=claim.is_cut,
        is_paused=parts.claims.is_paused(claim),
    )
