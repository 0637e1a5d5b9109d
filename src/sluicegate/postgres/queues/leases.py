"""The leases of one open source: claimed, delivered and settled jobs. Pure.

1. A lease is the claim of a lane with a few jobs, or of one job without a key. It is *waiting*
   until its claim has begun. Then its records are delivered in order, and it is settled as the
   position of its claim moves.
2. A lease ends once: when it is completely settled, when it is given back, or when it is lost.
3. If a key, or a job without a key, is claimed again, its previous lease was lost without notice.
   That lease ends before the claim of the new one begins.
4. Of the leases that have to be alone in their process, one is kept: its claim begins when no other
   lease remains, and nothing is claimed until it has ended. The others are to be given back.
5. The partition of a lease is the slot of its key. If another lease of the process has that slot,
   and for jobs without a key, it is a number that no other lease has.
6. A job with headers that cannot be decoded becomes an `UndecodableRecord` of its key, with the
   headers as text.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, cast

from ..._core.errors import PositionLost
from ..._core.source import Fetched, Position, Record, TopicPartition, UndecodableRecord
from ..records.values import entries_of, timestamp_of
from .leasing import LeaseName, Settlement

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from ..._core.source import ReturnedAs, SourceClaim
    from .leasing import Fate, LeasedJob, QueueLeases


RING = 65_536
"""The number of slots in the ring."""
LEASED_MOST = 2_000
"""The number of leased jobs at which claiming stops."""

RETURNED: Mapping[Fate, ReturnedAs] = {
    "waiting": "returned",
    "freed": "returned",
    "empty": "returned",
    "dead": "dead_lettered",
    "blocked": "blocked",
    "parked": "parked",
}
"""The results for the consumer, by the queue's result for a job."""


class Lease:
    """A lease of this process."""

    __slots__ = (
        "claim",
        "failed",
        "is_locked",
        "lane",
        "number",
        "partition",
        "places",
        "records",
        "settled",
        "until",
    )

    def __init__(
        self, number: int, lane: str | None, partition: TopicPartition, failed: int, until: float
    ) -> None:
        self.number = number
        self.lane = lane
        self.partition = partition
        self.failed = failed
        """Number of failed attempts of its first job before this lease."""
        self.until = until
        """The earliest time at which it ends, by the monotonic clock, unless it is extended."""
        self.places: list[int] = []
        """The places of its jobs."""
        self.records: list[Record] = []
        """Its records that were not delivered yet. The others belong to the consumer, which drops them
        once they are handled.
        """
        self.settled = 0
        """Number of its records that are settled in the queue."""
        self.claim: SourceClaim | None = None
        self.is_locked = False
        """Whether its last extension has found its lane locked by another session."""

    @property
    def is_gone(self) -> bool:
        """Whether it has ended in the queue with its only job, in another transaction."""
        return self.lane is None and self.settled == len(self.places)

    @property
    def start(self) -> Position:
        """The starting point of its claim."""
        return Position(self.places[0])

    @property
    def name(self) -> LeaseName:
        """The identifier of the lease in the queue's statements."""
        return LeaseName(self.number, self.lane, self.places[0])

    def settled_before(self, offset: int) -> list[int]:
        """Return the places before this offset that are not settled in the queue yet."""
        end = self.settled
        while end < len(self.places) and self.places[end] < offset:
            end += 1
        return self.places[self.settled : end]

    def settlement(self, offset: int) -> Settlement:
        """Build the settlement for a position: all unsettled jobs before the offset."""
        done = self.settled_before(offset)
        if self.lane is None:
            return Settlement(self.name, "done" if done else "keep")
        is_over = self.settled + len(done) == len(self.places)
        return Settlement(self.name, "free", done) if is_over else self.keep_rest(done)

    def keep_rest(self, done: Sequence[int]) -> Settlement:
        """Build the settlement of the next jobs of a lane that keeps the lease."""
        left = self.places[self.settled + len(done) :] or self.places[-1:]
        return Settlement(self.name._replace(place=left[0]), "keep", done)

    def begin(self, claim: SourceClaim) -> None:
        """Set its claim."""
        self.claim = claim

    def extend(self, until: float) -> None:
        """Record an extension."""
        self.until = until
        self.is_locked = False

    def postpone(self) -> None:
        """Record that an extension has found its lane locked."""
        self.is_locked = True

    def settle_before(self, offset: int) -> bool:
        """Record the settled jobs; return whether the lease is completely settled."""
        self.settled += len(self.settled_before(offset))
        return self.settled == len(self.places)

    def take(self, most: int) -> Fetched:
        """Deliver up to `most` more records."""
        first = len(self.records) == len(self.places)
        records, self.records = self.records[:most], self.records[most:]
        claim = cast("SourceClaim", self.claim)
        return Fetched(claim, records, failed=self.failed if first else 0)


class LeaseBook:
    """The leases of one open source."""

    def __init__(self, topic: str) -> None:
        self._topic = topic
        self._waiting: deque[Lease] = deque()
        self._undelivered: dict[SourceClaim, Lease] = {}
        self._claimed: dict[SourceClaim, Lease] = {}
        self._partitions: set[int] = set()
        self._newest: dict[str | int, Lease] = {}
        """By the key of the lane, or the place of a job without a key."""
        self._replaced: list[Lease] = []
        self._alone: Lease | None = None
        self._surplus: list[Lease] = []
        self.jobs = 0
        """The number of jobs in all open leases."""

    def __len__(self) -> int:
        return len(self.all)

    @property
    def all(self) -> list[Lease]:
        """All open leases."""
        alone = [] if self._alone is None or self._alone.claim is not None else [self._alone]
        return [*self._waiting, *self._claimed.values(), *alone, *self._surplus]

    @property
    def may_claim(self) -> bool:
        """Whether more jobs may be claimed."""
        return self.jobs < LEASED_MOST and self._alone is None

    @property
    def undelivered(self) -> int:
        """The number of records that were claimed but not delivered."""
        leases = (*self._waiting, *self._undelivered.values())
        return sum([len(lease.records) for lease in leases])

    @property
    def undelivered_bytes(self) -> int:
        """The bytes of the values of these records."""
        leases = (*self._waiting, *self._undelivered.values())
        return sum([len(cast("bytes", each.value)) for lease in leases for each in lease.records])

    def of(self, claim: SourceClaim) -> Lease | None:
        """Return the lease of an open claim."""
        return self._claimed.get(claim)

    def add(self, jobs: Iterable[LeasedJob], until: float) -> int:
        """Add claimed jobs, grouped by lease; return the number of leases."""
        lease, count = None, 0
        for job in jobs:
            if lease is None or lease.number != job.lease:
                partition = TopicPartition(self._topic, self._partition_of(job))
                lease = Lease(job.lease, job.lane, partition, job.attempts - 1, until)
                self._take_in(lease, is_alone=job.is_alone)
                count += 1
                what = job.place if job.lane is None else job.lane
                if what in self._newest:
                    self._replaced.append(self._newest[what])
                self._newest[what] = lease
            lease.places.append(job.place)
            lease.records.append(record_of(lease.partition, job))
            self.jobs += 1
        return count

    def _take_in(self, lease: Lease, *, is_alone: bool) -> None:
        if not is_alone:
            self._waiting.append(lease)
        elif self._alone is None:
            self._alone = lease
        else:
            self._surplus.append(lease)

    def _partition_of(self, job: LeasedJob) -> int:
        if job.lane is None:
            number = -job.lease
        else:
            number = job.slot
            while number in self._partitions:
                number += RING
        self._partitions.add(number)
        return number

    def take_replaced(self) -> list[Lease]:
        """Return the open leases whose keys were claimed again."""
        replaced = [each for each in self._replaced if each in self.all]
        self._replaced.clear()
        return replaced

    def take_waiting(self) -> list[Lease]:
        """Return the leases whose claims are to begin now."""
        waiting = [*self._waiting]
        self._waiting.clear()
        if self._alone is not None and not (waiting or self._claimed or self._surplus):
            waiting.append(self._alone)
        return waiting

    @property
    def surplus(self) -> list[Lease]:
        """The leases to give back."""
        return [*self._surplus]

    def begin_claim(self, lease: Lease, claim: SourceClaim) -> None:
        """Record the claim of a lease."""
        lease.begin(claim)
        self._claimed[claim] = self._undelivered[claim] = lease

    def deliver(self, claims: Collection[SourceClaim], most: int) -> list[Fetched]:
        """Deliver records of these claims, in the order in which they were claimed."""
        found: list[Fetched] = []
        if not self._undelivered:
            return found
        named = set(claims)
        for claim, lease in tuple(self._undelivered.items()):
            if most <= 0:
                break
            if claim not in named:
                continue
            fetched = lease.take(most)
            found.append(fetched)
            most -= len(fetched.records)
            if not lease.records:
                del self._undelivered[claim]
        return found

    def end(self, leases: Iterable[Lease]) -> list[SourceClaim]:
        """End leases; return the claims of those that had one."""
        ended: list[SourceClaim] = []
        for lease in leases:
            if lease in self._waiting:
                self._waiting.remove(lease)
            elif lease in self._surplus:
                self._surplus.remove(lease)
            elif lease is self._alone and lease.claim is None:
                pass
            elif lease.claim is None or self._claimed.pop(lease.claim, None) is None:
                continue  # it has already ended
            else:
                self._undelivered.pop(lease.claim, None)
                ended.append(lease.claim)
            if lease is self._alone:
                self._alone = None
            self._partitions.discard(lease.partition.partition)
            self.jobs -= len(lease.places)
            what = lease.places[0] if lease.lane is None else lease.lane
            if self._newest.get(what) is lease:
                del self._newest[what]
        return ended


def record_of(partition: TopicPartition, job: LeasedJob) -> Record:
    """Convert a job to a record, which is ordered by the key of its lane."""
    headers, error = entries_of("headers", job.headers)
    if job.lane is not None and job.key is not None and job.key != job.lane:
        headers.append(("key", job.key.encode()))
    topic, number = partition
    value, timestamp = job.payload, timestamp_of(job.at)
    found = (topic, number, job.place, job.lane, value, headers, timestamp)
    return Record(*found) if error is None else UndecodableRecord(*found, error=error)


class LeaseMove:
    """Settles the jobs of a lease before an offset, and keeps the lease.

    The queue does not record which process settled a job. A move that finds fewer jobs than it
    settles is therefore refused: an earlier move may have been applied, and is checked by
    `is_moved`.
    """

    def __init__(self, queue: QueueLeases, name: str, lease: Lease, offset: int) -> None:
        self._queue = queue
        self._name = name
        self._lease = lease
        self._offset = offset
        self._places = lease.settled_before(offset)

    @property
    def keeper(self) -> str:
        """The name of the queue."""
        return f"the queue {self._name}"

    async def move(self, connection: Any) -> None:
        """Settle the jobs on this connection. Raises `PositionLost` if the lease has ended, and the
        client's error if another session keeps its lane locked.
        """
        queue, lease = self._queue, self._lease
        if await queue.count_unsettled_on(connection, self._places) < len(self._places):
            text = f"jobs of lease {lease.number} of {self._name} are already settled, or the sink"
            raise PositionLost(f"{text} is in another database than the queue")
        is_loose = lease.lane is None
        settlement = Settlement(lease.name, "done") if is_loose else lease.keep_rest(self._places)
        if await queue.settle_on(connection, settlement) == "lost":
            text = f"lease {lease.number} of {self._name} has ended, or the sink"
            raise PositionLost(f"{text} is in another database than the queue")

    async def is_moved(self, connection: Any) -> bool:
        """Whether the jobs are settled, as seen by another connection after the COMMIT has ended."""
        first = await self._queue.first_unsettled(self._lease.name, self._places, connection)
        return first is None

    def committed(self) -> None:
        """Record that the jobs are settled."""
        self._lease.settle_before(self._offset)
