"""`stats()` of a consumer: counts and levels. Thread-safe."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from .health import why_not_ready

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .._core.source import TopicPartition
    from .claim import Claim
    from .counts import MessageCounts
    from .crash_window import Deliveries
    from .lag import Lag
    from .parts import Parts
    from .sampling import Sampler

State = Literal["opening", "running", "draining", "closed"]


@dataclass(frozen=True, slots=True)
class InFlight:
    """Messages inside a consumer. The counts of all places add up to `messages`."""

    messages: int
    bytes: int
    ready: int
    """May start as soon as a worker is free."""
    running: int
    """In a handler."""
    errands: int
    """In a task that writes a dead letter or a parked record."""
    manual: int
    """Waiting for `settle()`, or for a job."""
    backing_off: int
    blocked: int
    """Poison messages that keep their keys until `unblock`."""
    waiting: int
    """Queued behind other messages of their key."""
    batched: int
    """In batches that no worker has started yet."""
    max_messages: int
    """The limit `max_in_flight`."""
    max_bytes: int
    """The limit `max_in_flight_bytes`."""


@dataclass(frozen=True, slots=True)
class PartitionStats:
    """A partition owned by this process."""

    position: int
    """The offset of the first unfinished record."""
    committed: int
    """The stored position."""
    map_bytes: int
    """Size of the stored map of settled records beyond the position."""
    is_map_cut: bool
    """Whether the last map was too large and was cut. Records cut from it run again after a crash.
    """
    is_paused: bool
    stood: float | None
    """Minimum time in seconds for which the position has not moved although a record is unfinished;
    sampled once per second. `None` without an unfinished record.
    """


@dataclass(frozen=True, slots=True)
class ConsumerStats:
    """A snapshot of a consumer.

    Exact if taken in the loop's thread. In another thread, its figures may differ by a few
    messages.
    """

    name: str
    counts: MessageCounts
    in_flight: InFlight
    partitions: Mapping[TopicPartition, PartitionStats]
    commits: int
    commit_failures: int
    deliveries: Deliveries
    is_stalled: bool
    state: State
    is_ready: bool
    parked_keys: int
    """Keys whose records are written to the park store."""
    lags: Mapping[TopicPartition, Lag]
    """The last sampled lag, for observers that set `lag_every`; otherwise empty. `Consumer.lag()`
    computes the current lag.
    """

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


def stats_of(parts: Parts, sampler: Sampler, lags: Mapping[TopicPartition, Lag]) -> ConsumerStats:
    """Take a snapshot. Thread-safe."""
    is_beating, is_ending = sampler.heart.is_beating, parts.ending.is_begun
    return ConsumerStats(
        parts.commons.name,
        parts.commons.counts.snapshot(parts.schedule.acknowledged),
        _in_flight(parts),
        {claim.partition: _partition(parts, claim, sampler) for claim in parts.claims},
        parts.committer.commits,
        parts.committer.failures,
        parts.claims.windows.total(parts.claims),
        sampler.stalls.is_stalled,
        _STATES[is_beating, is_ending],
        why_not_ready(parts, sampler.heart) is None,
        len(parts.schedule.parked),
        lags,
    )


_STATES: Mapping[tuple[bool, bool], State] = {
    (False, False): "opening",
    (True, False): "running",
    (True, True): "draining",
    (False, True): "closed",
}
"""The state by whether the loop beats and whether the end has begun."""


def _in_flight(parts: Parts) -> InFlight:
    schedule = parts.schedule
    return InFlight(
        messages=schedule.window.messages,
        bytes=schedule.window.bytes,
        ready=len(schedule.ready),
        running=sum([len(slot.messages()) for slot in tuple(parts.workers.slots)]),
        errands=len(parts.errands.running),
        manual=sum(message not in schedule.completed.inside for message in parts.settler.manual),
        backing_off=len(schedule.retries),
        blocked=len(schedule.blocked),
        waiting=schedule.waiting,
        batched=len(schedule.formed),
        max_messages=schedule.window.max_messages,
        max_bytes=schedule.window.max_bytes,
    )


def _partition(parts: Parts, claim: Claim, sampler: Sampler) -> PartitionStats:
    committed = claim.committed
    return PartitionStats(
        position=max(claim.tracker.seen_position(), committed.offset),
        committed=committed.offset,
        map_bytes=len(committed.metadata),
        is_map_cut=claim.is_cut,
        is_paused=parts.claims.is_paused(claim),
        stood=sampler.stood(claim),
    )
