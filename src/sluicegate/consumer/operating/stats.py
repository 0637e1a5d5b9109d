"""`stats()` of a consumer, and the sampler of its ages, stalls and crash windows.

1. Statistics are counts and levels, read from any thread.
2. Samples are taken once per period, and cost nothing per message. While the consumer is empty, the
   source is queried for its ends four times per `stall_after`, so that a consumer that fetches
   nothing is detected too.
3. A consumer is stalled if nothing was settled for `stall_after` seconds despite work. A failed
   attempt is not progress. Time counts only while there is work: an unsettled message, or a record
   behind the position in a partition that may be fetched from. A stall ends with progress, or
   without work.
"""

from __future__ import annotations

import asyncio
import logging
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from ..._core.logs import for_log, log_safely
from .explain import Explainer, Samples
from .health import Health, Heartbeat, lags_of, why_not_alive, why_not_ready

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ..._core.source import TopicPartition
    from ..lanes.message import Message
    from ..progress.claim import Claim
    from ..progress.claims import Deliveries
    from ..run import MessageCounts
    from .explain import Explanation
    from .health import Lag
    from .places import Places

State = Literal["opening", "running", "draining", "closed"]

PERIOD = 1.0
"""Maximum time between two samples, in seconds."""
LOOKS = 4
"""Minimum number of samples per `stall_after`."""
ENDS_WITHIN = 10.0
"""Seconds within which the source must return its ends."""
logger = logging.getLogger("sluicegate.consumer")
_STALLED = "%s: nothing has been settled for %.3g s although there is work\n%s"
_NO_PROGRESS = "nothing has been settled for a while although there is work; see explain()"
_MOVES = "%s: no longer stalled"
_PASSED = "%s: %s"
_NO_ENDS = "%s: the source did not return its ends (%s)"
Change = Literal["stalled", "moves"]

_STATES: Mapping[tuple[bool, bool], State] = {
    (False, False): "opening",
    (True, False): "running",
    (True, True): "draining",
    (False, True): "closed",
}
"""The state by whether the loop beats and whether the end has begun."""


@dataclass(frozen=True, slots=True)
class InFlightStats:
    """Unsettled messages of a consumer. The counts of all places add up to `messages`."""

    messages: int
    bytes: int
    ready: int
    """May start as soon as a worker is free."""
    running: int
    """In a handler."""
    writing: int
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
    """The limit `InFlight.messages`."""
    max_bytes: int
    """The limit `InFlight.bytes`."""


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
    in_flight: InFlightStats
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


def stats_of(places: Places, sampler: Sampler, lags: Mapping[TopicPartition, Lag]) -> ConsumerStats:
    """Take a snapshot. Thread-safe."""
    is_beating, is_ending = sampler.heart.is_beating, places.run.is_ending
    return ConsumerStats(
        places.run.name,
        places.run.counted(places.schedule.acknowledged),
        _in_flight(places),
        {claim.partition: _partition(places, claim, sampler) for claim in places.claims},
        places.committer.commits,
        places.committer.failures,
        places.claims.deliveries(),
        sampler.stalls.is_stalled,
        _STATES[is_beating, is_ending],
        why_not_ready(places, sampler.heart) is None,
        len(places.schedule.parked),
        lags,
    )


def _in_flight(places: Places) -> InFlightStats:
    schedule = places.schedule
    return InFlightStats(
        messages=schedule.window.messages,
        bytes=schedule.window.bytes,
        ready=len(schedule.ready),
        running=sum([len(slot.messages()) for slot in tuple(places.workers.slots)]),
        writing=len(places.departures.writing),
        manual=len(places.settler.manual) + len(schedule.completed.out),
        backing_off=len(schedule.retries),
        blocked=len(schedule.blocked),
        waiting=schedule.waiting,
        batched=len(schedule.formed),
        max_messages=schedule.window.max_messages,
        max_bytes=schedule.window.max_bytes,
    )


def _partition(places: Places, claim: Claim, sampler: Sampler) -> PartitionStats:
    committed = claim.committed
    return PartitionStats(
        position=max(claim.tracker.seen_position(), committed.offset),
        committed=committed.offset,
        map_bytes=len(committed.metadata),
        is_map_cut=claim.is_cut,
        is_paused=places.claims.is_paused(claim),
        stood=sampler.stood(claim),
    )


class Sampler:
    """A periodic sampler of a consumer; reports stalls, and crash windows that were passed."""

    def __init__(self, places: Places, stall_after: float | None) -> None:
        self._places = places
        self._clock = places.run.clock
        self._name = places.run.name
        self._period = PERIOD if stall_after is None else min(PERIOD, stall_after / LOOKS)
        self._ask_every = math.inf if stall_after is None else stall_after / LOOKS
        self._ask_at = -math.inf
        self._has_backlog = False
        self._interjected = 0
        self._samples = Samples()
        self._was_ready = False
        self.stalls = StallDetector(stall_after)
        self.heart = Heartbeat()

    async def run(self) -> None:
        """Sample until cancelled."""
        self.heart.begin(asyncio.get_running_loop())
        self._places.run.readiness.fire()
        try:
            while True:
                self.heart.beat()
                self._sample()
                self._look_for_readiness()
                await self._look_for_stall()
                await self._clock.sleep(self._period)
        finally:
            self._sample()
            self.heart.end()

    def stood(self, claim: Claim) -> float | None:
        """Return how long the position of a claim had not moved at the last sample, in seconds.
        Thread-safe.
        """
        stood = self._samples.stood(claim, self._samples.taken_at)
        return None if stood is None else max(0.0, stood)

    def explanation(self) -> Explanation:
        """Explain the current state, with ages from the samples."""
        now = self._sample()
        return Explainer(self._places, self._samples, now, self.heart).explanation()

    def health(self) -> Health:
        """Return readiness and liveness. Thread-safe."""
        stalled = _NO_PROGRESS if self.stalls.is_stalled else None
        return Health(
            why_not_ready(self._places, self.heart),
            why_not_alive(self._places, self.heart),
            stalled,
        )

    def busy_since(self) -> dict[Message, float]:
        """Return the time at which each busy message was first seen in its state, in the clock's
        seconds.
        """
        self._sample()
        return self._samples.since()

    def _sample(self) -> float:
        places, now = self._places, self._clock.now()
        self._samples.take(now, places.busy(), places.claims)
        for window in places.claims.passed_windows():
            log_safely(logger, logging.INFO, _PASSED, self._name, window)
        return now

    def _look_for_readiness(self) -> None:
        is_ready = why_not_ready(self._places, self.heart) is None
        if is_ready != self._was_ready:
            self._was_ready = is_ready
            if is_ready or not self._places.run.is_ending:
                self._places.run.tell_state("ready" if is_ready else "not_ready")

    # -- stalls ------------------------------------------------------------------------------------

    async def _look_for_stall(self) -> None:
        if self._ask_every == math.inf:
            return
        has_work = await self._has_work()
        now = self._clock.now()
        is_draining = self._places.run.is_ending
        change = self.stalls.look(now, self._settled(), has_work=has_work and not is_draining)
        if change == "stalled":
            idle = self.stalls.idle_for(now)
            log_safely(logger, logging.WARNING, _STALLED, self._name, idle, self.explanation())
            self._places.run.tell_state("stalled")
        elif change == "moves":
            self._places.run.tell_state("moving")
            log_safely(logger, logging.INFO, _MOVES, self._name)

    async def _has_work(self) -> bool:
        """Return whether there are unsettled messages, or the source has more."""
        inside = self._inside()
        if inside or self._settled() != self.stalls.settled:
            self._has_backlog, self._ask_at = False, -math.inf
            return inside > 0
        now = self._clock.now()
        if now >= self._ask_at:
            self._ask_at = now + self._ask_every
            self._has_backlog = await self._lags()
        return self._has_backlog

    def _inside(self) -> int:
        """Return the number of unsettled messages, without interjections as long as these end: they
        are progress, but not that of records.
        """
        inside, jobs = self._places.schedule.window.messages, self._places.settler.jobs
        if jobs is None or jobs.interjections.ended == self._interjected:
            return inside
        self._interjected = jobs.interjections.ended
        return max(0, inside - jobs.interjections.inside)

    async def _lags(self) -> bool:
        """Return whether a partition that may be fetched from is behind its end."""
        claims = self._places.claims
        try:
            async with self._clock.timeout_at(self._clock.now() + ENDS_WITHIN):
                lags = await lags_of(self._places)
        except Exception as error:  # the source reports its problem itself
            log_safely(logger, logging.DEBUG, _NO_ENDS, self._name, for_log(error))
            return self._has_backlog
        fetched = [claim.partition for claim in claims if not claims.is_paused(claim)]
        return any(lags[partition].messages for partition in fetched if partition in lags)

    def _settled(self) -> int:
        """Return the number of messages settled in any way."""
        counts = self._places.run.counts
        others = counts["dead_lettered"] + counts["parked"] + counts["unparked"]
        others += counts["terminated"]
        return self._places.schedule.acknowledged + others + counts["skipped"]


class StallDetector:
    """Detector of stalls: nothing has been settled for `after` seconds although there is work."""

    def __init__(self, after: float | None) -> None:
        self._after = after
        self.settled = 0
        self._since: float | None = None
        self.is_stalled = False

    def look(self, now: float, settled: int, *, has_work: bool) -> Change | None:
        """Record the number of settled messages at `now`; return the change of state, if any."""
        if settled != self.settled or not has_work:
            self.settled = settled
            self._since = now if has_work else None
            return self._become(stalled=False)
        if self._since is None:
            self._since = now
        is_over = self._after is not None and now - self._since >= self._after
        return self._become(stalled=is_over)

    def idle_for(self, now: float) -> float:
        """Return the seconds without progress despite work."""
        return 0.0 if self._since is None else now - self._since

    def _become(self, *, stalled: bool) -> Change | None:
        if stalled == self.is_stalled:
            return None
        self.is_stalled = stalled
        return "stalled" if stalled else "moves"
