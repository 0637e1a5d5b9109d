"""An open source: the calls of the consumer, and the background tasks.

1. A fetch delivers claimed jobs; if there are none, it claims more. When it begins the claims of
   new leases, it returns without records, since a consumer names the claims that it fetches from.
2. A lease ends with its last settled job, in the same statement. If a lease is given back, or has a
   job that the queue keeps, its claim ends before the key is free in this process.
3. `_keep` extends the leases. A lease that had ended, or was not extended in time, is lost: its
   claim ends, and its running handlers have no effect on the queue.
4. An unreachable server is reported as a problem, and tried again. The next fetch raises an error
   that a retry cannot resolve.
5. No more jobs are claimed while `LEASED_MOST` are leased, since the consumer no longer counts
   handled jobs that wait to be settled; nor while a lease has to be alone.
6. At the end, all unsettled jobs are given back immediately, without counting an attempt.
7. Jobs that were inserted without the trigger are in no lane, so no claim finds them. They are
   reported: looked for while there is nothing to claim, and at the end of a source that ends.
8. An operator may cancel a leased job. The next extension reports that, and the consumer returns
   the job.
9. A lane that another session has locked, such as an operator's, delays its key only. It is left
   out of the common statements. `_settle_locked` settles it as soon as it is free, and its
   extension is tried again. Its lease is lost if it is not extended in time, or if the server has
   ended it.
"""

from __future__ import annotations

import asyncio
import logging
import math
from typing import TYPE_CHECKING

from ..._core.clock import wait_until
from ..._core.errors import PositionLost, UnavailableError
from ..._core.logs import for_log, log_safely
from ..._core.runtime.threads import close_within
from ..records.source import RETRY_TO, Serving, logger
from ..schema.contents import LOST_JOBS
from .firing import Firing
from .leases import RETURNED, LeaseBook, LeaseMove
from .leasing import Member, Settlement

if TYPE_CHECKING:
    from collections.abc import Collection, Coroutine, Mapping, Sequence

    from ..._core.clock import Clock
    from ..._core.source import ClaimHost, Fetched, Position, ReturnedAs, SourceClaim, SourceRecord
    from .leases import Lease
    from .leasing import Fate, LeaseName, QueueLeases, QueueOptions


LOST_EVERY = 60.0
"""Seconds between searches for jobs that no claim finds."""
GIVE_BACK_WITHIN = 2.0
"""Seconds for giving back leases at the end. Remaining leases expire."""

_LOST = "%s: %d leases are lost (%s), the first of the key %r; their unsettled jobs come again"
_NOT_GIVEN_BACK = "%s: %d leases could not be given back (%s); they expire by themselves"
_PAUSED = "the queue is paused: `sluicegate queue resume` continues it"
_LOCKED = "another session keeps %d keys locked, such as %r; their jobs are settled after it"
_EXPIRED = "they were not extended in time"
_REPLACED = "they had expired, or the queue has changed"
WEIGHT = 0.25
"""Weight of the last claim in the average number of jobs per key."""
FEW_KEYS = 10
"""Factor for the jobs leased per key while few keys are ready."""


class OpenQueue(Serving):
    """The jobs of one process while its source is open."""

    def __init__(
        self, queue: QueueLeases, options: QueueOptions, host: ClaimHost, clock: Clock
    ) -> None:
        super().__init__(options.queue, host, clock)
        self._queue = queue
        self._options = options
        self._book = LeaseBook(options.queue)
        self._firing = Firing(queue, clock)
        self._member = Member(queue, options, self._firing.expect)
        self._claimer = Claimer(queue, self._book, options, clock)
        self._due_at = math.inf
        """The time at which a job that was put back here is due."""
        self._lost_at = -math.inf
        """The time of the next search for jobs that no claim finds."""
        self._locked: dict[Lease, int] = {}
        """The leases whose lanes were locked, with the offsets before which they are settled."""
        self._has_locked = asyncio.Event()
        self._are_locks_logged = False

    async def _begin(self) -> None:
        await self._member.join()

    def _background(self) -> Sequence[Coroutine[None, None, None]]:
        self._host.assigned({})  # a consumer without jobs is also ready
        firing = self._firing.run(self._attempt, self.news.fire)
        return self._keep(), self._stay(), self._settle_locked(), firing

    # -- the tasks ---------------------------------------------------------------------------------

    async def _keep(self) -> None:
        """Extend the leases, and end those that may have expired."""
        clock, every = self._clock, self._options.extend_every
        soon = min(every / 4, 1.0)
        next_at, locked_at = clock.now() + every, math.inf
        while True:
            first = min((lease.until for lease in self._book.all), default=math.inf)
            await clock.sleep(max(0.0, min(next_at, locked_at, first) - clock.now()))
            self._lose([each for each in self._book.all if each.until <= clock.now()], _EXPIRED)
            if clock.now() >= next_at:
                is_kept = await self._attempt("extending the leases", self._extend(self._book.all))
                next_at = clock.now() + (every if is_kept else soon)
            elif clock.now() >= locked_at:
                locked = [lease for lease in self._book.all if lease.is_locked]
                await self._attempt("extending the leases", self._extend(locked))
            else:
                continue
            are_locked = any(lease.is_locked for lease in self._book.all)
            locked_at = clock.now() + soon if are_locked else math.inf

    async def _extend(self, leases: Collection[Lease]) -> None:
        if not leases:
            return
        asked_at, until = self._clock.now(), min(lease.until for lease in leases)
        async with self._clock.timeout_at(until):
            fates = await self._queue.extend([each.name for each in leases], self._options.lease)
        here = self._book.all  # others may have been settled in the meantime
        lost: list[Lease] = []
        for lease in leases:
            fate, cancelled = fates.get(lease.number, ("lost", ()))
            if cancelled and lease in here and lease.claim is not None:
                self._host.cancelled(lease.claim, cancelled)
            if fate == "lost" and lease in here:
                lost.append(lease)
            elif fate == "kept":
                lease.extend(asked_at + self._options.lease)
            elif fate == "locked":
                lease.postpone()
        self._lose(lost, _REPLACED)

    async def _stay(self) -> None:
        """Stay a member of the group."""
        while True:
            await self._clock.sleep(self._member.every)
            if self._member.has_joined:
                what = "renewing the membership"
                await self._attempt(what, self._member.tell())
            else:
                await self._attempt("opening", self._member.join())

    # -- fetching ----------------------------------------------------------------------------------

    async def fetch(self, claims: Sequence[SourceClaim], most: int) -> list[Fetched] | None:
        """Deliver jobs of these claims, or begin new ones; `None` at the end of a source that ends."""
        clock, delay = self._clock, self._options.poll
        while True:
            if self._failure is not None:
                raise self._failure
            if found := self._book.deliver(claims, most):
                return found
            if self._begin_claims():
                return []
            if self._due_at <= clock.now():
                self._due_at = math.inf
            if surplus := self._book.surplus:
                worked = has_found = await self._attempt(
                    "giving jobs back", self._give_back(surplus)
                )
            elif self._book.may_claim:
                room = max(1, most - self._book.undelivered)
                room_bytes = max(1, self._host.room_bytes - self._book.undelivered_bytes)
                claiming = self._claimer.claim(room, room_bytes, self.news.count)
                leases = len(self._book)
                worked = await self._attempt("claiming jobs", claiming)
                has_found = worked and len(self._book) > leases
            else:
                await wait_until(clock, math.inf, self.news)
                continue
            if has_found:
                continue
            if worked:
                delay = self._options.poll
                await self._attempt("checking the queue", self._note_state())
                if self._options.ends and not self._book and await self._is_over():
                    return None
                if self.news.count != self._claimer.heard:  # also during the checks
                    continue
            else:
                delay = min(RETRY_TO, 2 * delay)
            await wait_until(clock, min(clock.now() + delay, self._due_at), self.news)

    def _begin_claims(self) -> bool:
        """Begin the claims of new leases; return whether there are any."""
        self._lose(self._book.take_replaced(), _REPLACED)
        waiting = self._book.take_waiting()
        if not waiting:
            return False
        starts = {lease.partition: lease.start for lease in waiting}
        for lease, claim in zip(waiting, self._host.assigned(starts), strict=True):
            self._book.begin_claim(lease, claim)
        return True

    async def _note_state(self) -> None:
        is_paused, to_tick = await self._queue.state()
        self._firing.expect(to_tick)
        self._troubles.note("pause", _PAUSED if is_paused else None)
        if self._clock.now() >= self._lost_at:
            await self._note_lost()

    async def _note_lost(self) -> None:
        self._lost_at = self._clock.now() + LOST_EVERY
        keys = await self._queue.without_lane()
        self._troubles.note("lanes", LOST_JOBS % keys if keys else None)

    async def _is_over(self) -> bool:
        ready: list[bool] = []

        async def check() -> None:
            ready.append(await self._queue.has_ready())
            if not ready[0]:
                await self._note_lost()

        return await self._attempt("checking the queue", check()) and ready == [False]

    # -- settling ----------------------------------------------------------------------------------

    async def commit(self, positions: Mapping[SourceClaim, Position]) -> list[SourceClaim]:
        """Settle the jobs before these positions; return the claims for which this is stored."""
        moves = [
            (lease, position.offset)
            for claim, position in positions.items()
            if (lease := self._book.of(claim)) is not None
        ]
        if not moves:
            return []
        self._locked.update({each: offset for each, offset in moves if each in self._locked})
        moves = [(lease, offset) for lease, offset in moves if lease not in self._locked]
        wanted = [lease.settlement(offset) for lease, offset in moves if not lease.is_gone]
        fates = await self._queue.settle(wanted) if wanted else {}
        return self._record(moves, fates)

    def _record(
        self, moves: Collection[tuple[Lease, int]], fates: Mapping[int, Fate]
    ) -> list[SourceClaim]:
        """Record settled jobs; return the claims of leases that had not ended."""
        lost: list[Lease] = []
        over: list[Lease] = []
        stored: list[SourceClaim] = []
        for lease, offset in moves:
            claim = lease.claim
            if claim is None or self._book.of(claim) is not lease:
                continue  # lost in the meantime, by expiry
            fate = None if lease.is_gone else fates.get(lease.number, "lost")
            if fate == "lost":
                lost.append(lease)
            elif fate == "locked":
                self._locked[lease] = max(offset, self._locked.get(lease, offset))
                self._has_locked.set()
            else:
                stored.append(claim)
                # the rest of a lease that is kept may be settled in the meantime
                if lease.settle_before(offset) and fate != "kept":
                    over.append(lease)
        self._end(over)
        self._lose(lost, _REPLACED)
        if "freed" in fates.values():  # a key has more jobs
            self.news.fire()
        return stored

    async def _settle_locked(self) -> None:
        """Settle the leases whose lanes were locked, as soon as their lanes are free."""
        while True:
            await self._has_locked.wait()
            if not await self._attempt("settling locked keys", self._settle_free()):
                await self._clock.sleep(min(self._options.extend_every / 4, 1.0))
            self._drop_ended()
            if not self._locked:
                self._has_locked.clear()
                self._are_locks_logged = False

    async def _settle_free(self) -> None:
        """Settle the locked leases whose lanes are free by now, then wait for the lock of one.

        If that lock is held for longer, it is waited for again after the others.
        """
        self._drop_ended()
        if len(self._locked) > 1:
            moves = [*self._locked.items()]
            wanted = [lease.settlement(offset) for lease, offset in moves]
            self._record_locked(moves, await self._queue.settle(wanted))
        if not self._locked:
            return
        lease, offset = next(iter(self._locked.items()))
        fate = await self._queue.settle_one(lease.settlement(offset))
        if fate == "locked":
            if not self._are_locks_logged:
                self._are_locks_logged = True
                told = _LOCKED % (len(self._locked), lease.lane)
                log_safely(logger, logging.WARNING, "%s: %s", self._options.queue, told)
            if lease in self._locked:
                self._locked[lease] = self._locked.pop(lease)
        else:
            self._record_locked([(lease, offset)], {lease.number: fate})

    def _record_locked(
        self, moves: Collection[tuple[Lease, int]], fates: Mapping[int, Fate]
    ) -> None:
        for lease, offset in moves:
            is_newest = self._locked.get(lease) == offset  # another commit may have moved it
            if fates.get(lease.number) != "locked" and is_newest:
                del self._locked[lease]
        self._record(moves, fates)

    def _drop_ended(self) -> None:
        here = self._book.all
        self._locked = {lease: offset for lease, offset in self._locked.items() if lease in here}

    def move_to(self, claim: SourceClaim, offset: int) -> LeaseMove:
        """Return the move that settles a claim's jobs before this offset in another transaction."""
        return LeaseMove(self._queue, self._options.queue, self._lease_of(claim), offset)

    async def fetch_settled_offset(self, claim: SourceClaim) -> int:
        """Return the offset before which all jobs of a claim are settled in the queue."""
        lease = self._lease_of(claim)
        places = lease.places
        first = await self._queue.first_unsettled(lease.name, places)
        offset = places[-1] + 1 if first is None else first
        lease.settle_before(offset)
        return offset

    def _lease_of(self, claim: SourceClaim) -> Lease:
        lease = self._book.of(claim)
        if lease is None:
            raise PositionLost(f"the lease of {claim.partition} has ended")
        return lease

    async def settle_one(
        self, claim: SourceClaim, settled: int, record: SourceRecord, **settled_as: object
    ) -> ReturnedAs | None:
        """Settle a job that was not handled, and end its lease, with the later jobs of its key."""
        lease = self._book.of(claim)
        if lease is None:
            return None
        done = [] if lease.lane is None else lease.settled_before(settled)
        name = lease.name._replace(place=record.offset)
        settlement = Settlement(name, done=done, **settled_as)  # type: ignore[arg-type]
        fate = await self._queue.settle_one(settlement)
        if fate == "locked":
            raise UnavailableError(_LOCKED % (1, lease.lane))
        if fate == "lost":
            self._lose([lease], _REPLACED)
            return None
        self._end([lease])
        if settlement.delay is not None:
            self._due_at = min(self._due_at, self._clock.now() + settlement.delay)
        if settlement.delay is not None or fate == "dead":
            self.news.fire()
        return RETURNED[fate]

    # -- the end of leases -------------------------------------------------------------------------

    def _end(self, leases: Collection[Lease]) -> None:
        may_claim = self._book.may_claim
        if ended := self._book.end(leases):
            self._host.ended(ended)
        if not may_claim:
            self.news.fire()

    def _lose(self, leases: Collection[Lease], reason: str) -> None:
        if leases:
            first = next(iter(leases)).lane
            log_safely(
                logger, logging.WARNING, _LOST, self._options.queue, len(leases), reason, first
            )
            self._end(leases)

    async def _give_back(self, leases: Collection[Lease]) -> None:
        wanted = [Settlement(each.name, "free") for each in leases]
        fates = await self._queue.settle(wanted)
        locked = [each for each in leases if fates.get(each.number) == "locked"]
        self._end([each for each in leases if each not in locked])
        if locked:
            raise UnavailableError(_LOCKED % (len(locked), locked[0].lane))

    async def _close(self) -> None:
        """End all claims, and give back their unsettled jobs."""
        names: list[LeaseName] = []
        try:
            seconds = close_within(GIVE_BACK_WITHIN)
            async with self._clock.timeout_at(self._clock.now() + seconds):
                await self._claimer.close()
                self._drop_ended()
                wanted = [self._given_back(lease) for lease in self._book.all]
                names = [each.lease for each in wanted]
                self._end(self._book.all)
                if wanted:
                    fates = await self._queue.settle(wanted)
                    wanted = [each for each in wanted if fates.get(each.lease.number) == "locked"]
                await self._member.leave()
                for each in wanted:
                    await self._queue.settle_one(each)
        except Exception as error:
            log_safely(
                logger,
                logging.INFO if names else logging.DEBUG,
                _NOT_GIVEN_BACK,
                self._options.queue,
                len(names),
                for_log(error),
            )
        finally:
            self._end(self._book.all)

    def _given_back(self, lease: Lease) -> Settlement:
        """Build the settlement that ends a lease, with its jobs that are handled but were locked."""
        offset = self._locked.get(lease, 0)
        if lease.lane is None and lease.settled_before(offset):
            return Settlement(lease.name, "done")
        return Settlement(lease.name, "free", lease.settled_before(offset))

    async def ends(self, claims: Collection[SourceClaim]) -> dict[SourceClaim, int]:
        """Return the offset after the last job of each claim."""
        found = {claim: self._book.of(claim) for claim in claims}
        return {c: lease.places[-1] + 1 for c, lease in found.items() if lease is not None}


class Claimer:
    """Claims jobs for one open source, independently of fetches.

    1. Only one claim is in progress at a time, in its own task. A cancelled fetch does not cancel it,
       and its jobs wait for the next fetch, so no lease is forgotten.
    2. The number of keys to claim is estimated from the last claims, to fill the room of the fetch.
       Excess jobs wait here, under their leases. While fewer keys are ready than requested, each key is
       leased with more of its jobs, since no other key is waiting. This is not known after a claim that
       the limit in bytes may have cut.
    3. A lease ends at the latest `lease` seconds after its request, by the local clock; its time on the
       server begins later.
    """

    def __init__(
        self, queue: QueueLeases, book: LeaseBook, options: QueueOptions, clock: Clock
    ) -> None:
        self._queue = queue
        self._book = book
        self._options = options
        self._clock = clock
        self._task: asyncio.Task[int] | None = None
        self._per_lane = float(options.per_key)
        """The average number of jobs per claimed key."""
        self._are_few = False
        """Whether the last claim found fewer keys than requested."""
        self.heard = 0
        """The count of news when the last claim began. It may have missed later ones."""

    async def claim(self, most: int, most_bytes: int, heard: int) -> int:
        """Claim about `most` more jobs, of at most `most_bytes` bytes unless the first is larger;
        return the number of leases. Raises client errors.

        `heard` is the count of news so far. If the call is cancelled, its claim continues, and adds
        its leases to the book when it ends: the next call waits for that claim.
        """
        if self._task is None:
            self.heard = heard
            self._task = asyncio.get_running_loop().create_task(self._claim(most, most_bytes))
        task = self._task
        try:
            return await asyncio.shield(task)
        finally:
            if task.done() and self._task is task:
                self._task = None

    async def _claim(self, most: int, most_bytes: int) -> int:
        options, asked_at = self._options, self._clock.now()
        lanes = max(1, round(most / self._per_lane))
        per = options.per_key * FEW_KEYS if self._are_few else options.per_key
        async with self._clock.timeout_at(
            asked_at + options.lease
        ):  # the leases have ended by then
            jobs = await self._queue.claim(lanes, min(most, per), most, most_bytes, options.lease)
        leases = self._book.add(jobs, asked_at + options.lease)
        of_lanes = [job.lease for job in jobs if job.lane is not None]
        found = len(set(of_lanes))
        size = sum([len(job.payload) for job in jobs])
        self._are_few = found < lanes and size < most_bytes / 2
        if found:
            self._per_lane += WEIGHT * (len(of_lanes) / found - self._per_lane)
        return leases

    async def close(self) -> None:
        """Wait for a claim in progress, so that its leases can be given back.

        A cancelled call does not cancel the claim; its leases expire.
        """
        if self._task is not None:
            self._task.add_done_callback(_ignore)
            await asyncio.wait([self._task])
            self._task = None


def _ignore(task: asyncio.Task[int]) -> None:
    """Retrieve the error, since there is no fetch to raise it."""
    if not task.cancelled():
        task.exception()
