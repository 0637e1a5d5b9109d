"""A Python model of a queue: the jobs with their order, and the leases with their ends."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tests.postgres.queues.queue_help import Job

MAX_ATTEMPTS = 3


@dataclass(eq=False)
class Produced:
    """A job: its place, and when it was inserted and committed by the model's clock."""

    n: int
    key: str | None
    producer: int | None
    inserted: int
    committed: int | None = None
    state: str = "open"
    """Or `waiting`, `done`, `dead`, `rolled back`."""
    attempts: int = 0
    due: float | None = None

    def is_before(self, other: Produced) -> bool:
        """Whether it must be handled before the other job of the same key."""
        if self.due is not None or other.due is not None:
            return False
        if self.committed is not None and self.committed < other.inserted:
            return True
        return self.committed == other.committed and self.n < other.n


@dataclass(eq=False)
class Lease:
    number: int
    key: str | None
    slot: int
    group: str
    consumer: str
    until: float
    jobs: list[Job]
    """The unsettled jobs of the lease."""
    all: list[Job]
    has_ended: bool = False

    def is_live(self, now: float) -> bool:
        return not self.has_ended and self.until > now


@dataclass
class Model:
    poison: str = ""
    jobs: list[Produced] = field(default_factory=list)
    leases: list[Lease] = field(default_factory=list)
    stopped: set[str] = field(default_factory=set)
    due: dict[str, float] = field(default_factory=dict)
    """The ends of the backoffs, by key."""
    ranges: dict[str, list[tuple[int, int, str]]] = field(default_factory=dict)
    with_dead: set[str | None] = field(default_factory=set)
    """Keys of which the last claim has given up a job."""
    latest: float = 0
    """The latest time so far. A job due by then has entered, even if the clock is set back."""
    _clock: int = 0

    def produce(self, keys: Iterable[str | None], producer: int | None) -> list[Produced]:
        self._clock += 1
        made = [
            Produced(len(self.jobs) + n, key, producer, self._clock) for n, key in enumerate(keys)
        ]
        self.jobs += made
        if producer is None:
            self._commit(made)
        return made

    def end(self, producer: int, *, commits: bool) -> None:
        of_it = [job for job in self.jobs if job.state == "open" and job.producer == producer]
        if commits:
            self._commit(of_it)
        else:
            for job in of_it:
                job.state = "rolled back"

    def _commit(self, jobs: list[Produced]) -> None:
        self._clock += 1
        for job in jobs:
            job.state, job.committed = "waiting", self._clock

    def holder(self, key: str, now: float) -> Lease | None:
        return next((each for each in self.leases if each.key == key and each.is_live(now)), None)

    def claimable(self, now: float | None) -> set[str | None]:
        """The keys that an unlimited claim must return."""
        if now is None:
            return set()
        keys = {
            job.key
            for job in self.jobs
            if job.key is not None
            and job.state == "waiting"
            and (job.due is None or job.due <= now)
        }
        return {
            key
            for key in keys
            if key not in self.stopped
            and self.due.get(key, now) <= now
            and not self.holder(key, now)
        }

    def claimed(self, rows: Sequence[Job], group: str, consumer: str, now: float) -> list[Lease]:
        leases: dict[int, list[Job]] = {}
        for row in rows:
            leases.setdefault(row.lease, []).append(row)
        return [self._claimed(jobs, group, consumer, now) for jobs in leases.values()]

    def _claimed(self, rows: list[Job], group: str, consumer: str, now: float) -> Lease:
        first = rows[0]
        lease = Lease(
            first.lease, first.lane, first.slot, group, consumer, now + 30, list(rows), rows
        )
        assert all(each.number < lease.number for each in self.leases)
        head = self.jobs[first.payload]
        if lease.key is None:
            for each in self.leases:
                if each.all[0].payload == head.n:
                    assert not each.is_live(now), "two holders of a job"
                    each.has_ended = True
        else:
            self._claimed_lane(lease, now)
            for job in self.jobs:
                if job.key == lease.key and job is not head:
                    job.attempts = 0
        head.attempts += 1
        assert first.attempts == head.attempts <= MAX_ATTEMPTS
        assert first.attempts == 1 or len(rows) == 1, "beside a job that was tried before"
        self.leases.append(lease)
        return lease

    def _claimed_lane(self, lease: Lease, now: float) -> None:
        assert lease.key is not None
        assert self.holder(lease.key, now) is None, "two holders of a key"
        assert lease.key not in self.stopped
        for each in self.leases:
            if each.key == lease.key:
                each.has_ended = True
        self.due.pop(lease.key, None)
        earlier: set[Produced] = set()
        for row in lease.jobs:
            job = self.jobs[row.payload]
            assert job.state == "waiting", f"a job that is {job.state}"
            assert job.due is None or job.due <= self.latest
            for other in self.jobs:
                if other.key == job.key and other.state == "waiting" and other not in earlier:
                    assert other is job or not other.is_before(job), "overtaken"
            earlier.add(job)
        self._check_range(lease, now)

    def _check_range(self, lease: Lease, now: float) -> None:
        for lo, hi, owner in self.ranges.get(lease.group, ()):
            if lo <= lease.slot <= hi:
                assert owner == lease.consumer, "in the range of another consumer"
                for each in self.leases:
                    assert not (
                        each.is_live(now)
                        and each.group == lease.group
                        and each.consumer != owner
                        and each.key is not None
                        and lo <= each.slot <= hi
                    ), "in a range that drains"

    def attempts_of(self, lease: Lease, done: int) -> int:
        if lease.key is not None and done:
            return 1
        first = lease.jobs[0] if lease.jobs else lease.all[0]
        number: int = first.payload
        return self.jobs[number].attempts

    def settled(self, lease: Lease, action: str, done: int, fate: str, now: float) -> None:
        if not lease.is_live(now):
            assert fate == "lost", fate
            return
        assert fate != "lost"
        for row in lease.jobs[:done]:
            job = self.jobs[row.payload]
            assert job.state == "waiting"
            job.state = "done"
        lease.jobs = lease.jobs[done:]
        head = self.jobs[lease.jobs[0].payload] if lease.jobs else None
        if action == "keep":
            if done and head and lease.key is not None:
                head.attempts = 1
            return
        lease.has_ended = True
        if head is None:
            return
        if action == "free":
            head.attempts = 0 if done else max(0, head.attempts - 1)
        elif action == "nak":
            head.attempts = 1 if done and lease.key is not None else head.attempts
            if lease.key is not None:
                self.due[lease.key] = now + 5
        else:
            self._failed(lease, head, action, fate)

    def _failed(self, lease: Lease, head: Produced, action: str, fate: str) -> None:
        if action == "bury" or self.poison == "skip":
            assert fate == "dead"
            head.state = "dead"
            return
        assert fate == ("parked" if self.poison == "park_key" else "blocked")
        if lease.key is not None:
            self.stopped.add(lease.key)
            head.attempts = max(1, head.attempts)

    def given_up(self, stopped: set[str], dead: set[int]) -> None:
        """Compare with the stopped and dead jobs: a claim gives up jobs that were lost too
        often.
        """
        self.with_dead = set()
        assert self.stopped <= stopped
        for key in stopped - self.stopped:
            tried = [job for job in self.jobs if job.key == key and job.state == "waiting"]
            assert any(job.attempts == MAX_ATTEMPTS for job in tried), "given up too early"
        self.stopped = set(stopped)
        for n in dead:
            job = self.jobs[n]
            if job.state != "dead" and self.poison == "skip":
                assert job.state == "waiting"
                assert job.attempts == MAX_ATTEMPTS, "given up too early"
                job.state = "dead"
                self.with_dead.add(job.key)

    def resumed(self, key: str, state: str, now: float, *, skips: bool, keeps: bool) -> None:
        if key not in self.stopped:
            assert state == "missing"
            return
        if skips and self.holder(key, now):
            assert state == "leased"
            return
        assert state in {"ready", "dead"}
        self.stopped.discard(key)
        self.due.pop(key, None)
        for job in self.jobs:
            if job.key == key:
                job.attempts = min(job.attempts, MAX_ATTEMPTS - 1) if keeps and not skips else 0

    def died(self, dead: set[int], key: str) -> None:
        for n in dead:
            job = self.jobs[n]
            if job.key == key and job.state == "waiting":
                job.state = "dead"

    def left(self) -> list[int]:
        return [job.n for job in self.jobs if job.state in {"open", "waiting"}]
