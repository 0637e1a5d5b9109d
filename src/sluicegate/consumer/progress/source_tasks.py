"""The two tasks that call the source: the poller fetches records, the committer stores positions.

Fetching is limited by the room in the window.

1. Nothing is fetched while the window is full. It counts as full until it falls below the
   threshold.
2. Fetched records that exceed the limit in bytes wait here, and are admitted before others.
3. While nothing is fetched, `keep_alive` keeps the source in its group.
4. A waiting fetch is restarted when a claim begins or is resumed.
5. A source of short claims is also queried without a claim, since it begins claims during the
   query.

Commits contain positions, with maps of the records settled beyond them.

6. A commit is due every `every` seconds, after `after` settled messages, on demand, and at the end
   of a drain. It contains only claims with new positions. Messages are counted once per
   `LOOK_EVERY` seconds; if `after` is below `SMALL`, they are counted whenever messages are
   settled, which costs more.
7. Position and map form one snapshot, taken without suspending. One commit is in flight at a time;
   a failed commit is not repeated, but followed by one with a newer snapshot.
8. A closing claim is committed by its source during a revoke, and by the committer during the
   drain.
9. With short claims, or a source that settles each record, a commit is due as soon as a message is
   settled. Messages settled during a commit share the next one. A claim that stays open although
   its position was not stored, as of a locked row, is committed again with the next messages, or
   `AGAIN_AFTER` seconds later.
10. A source that settles each record keeps the reported records if its commit fails: the next
    commit names all claims.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import deque
from typing import TYPE_CHECKING, cast

from ..._core.clock import wait_until
from ..._core.logs import for_log, log_safely
from ..._core.runtime.cuts import end_if_cut
from ..._core.source import KeepsAlive

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from ..._core.clock import Signal
    from ..._core.source import Fetched, Position, Source, SourceClaim, SourceRecord
    from ..failures.poison import PoisonTreatment
    from ..handling.workers import Workers
    from ..lanes.schedule import Schedule
    from ..run import Run
    from .claim import Claim
    from .claims import Claims


logger = logging.getLogger("sluicegate.consumer")

_KEYLESS = (
    "%s: %s has records without a key, which are handled one after another; "
    'pass key=Keys(keyless="parallel") if their order does not matter'
)

LOOK_EVERY = 1.0
SMALL = 1000
AGAIN_AFTER = 0.25
_FAILED = "%s: a commit failed (%s); the next one follows in %.3g s"


class Poller:
    """The task that moves records from the source into the schedule."""

    def __init__(
        self,
        source: Source,
        claims: Claims,
        schedule: Schedule,
        workers: Workers,
        run: Run,
        *,
        poison: PoisonTreatment,
        fetch_max: int,
    ) -> None:
        self._source = source
        self._claims = claims
        self._schedule = schedule
        self._workers = workers
        self._poison = poison
        self._run = run
        self._fetch_max = fetch_max
        self._fetched: deque[Fetched] = deque()
        self._is_fetching = False

    async def run(self) -> None:
        """Fetch until the source ends. After a cancellation, fetched records that were lost are
        fetched again.
        """
        window = self._schedule.window
        while True:
            if self._fetched:
                self._admit_fetched()
            if self._fetched or window.is_full:
                await self._wait_for_room()
                continue
            wanted = self._claims.wanted()
            if not wanted and not self._claims.may_begin:
                await self._wait(self._run.assignment)
                continue
            fetched = await self._fetch(wanted, min(window.room, self._fetch_max))
            if fetched is None:
                self._claims.note_source_end()
                return
            self._fetched.extend(fetched)
            self._admit_fetched()
            await self._run.clock.sleep(0)

    def waiting(self) -> Iterator[SourceRecord]:
        """Return the fetched records that wait for room."""
        return (record for fetched in self._fetched for record in fetched.records)

    @property
    def fetched(self) -> int:
        """Number of fetched records that wait for room."""
        return sum([len(fetched.records) for fetched in self._fetched])

    def _admit_fetched(self) -> None:
        while self._fetched:
            fetched = self._fetched.popleft()
            claim, records = cast("Claim", fetched.claim), fetched.records
            if claim.is_closing:
                continue  # delivered again to a later claim
            if fetched.failed and records:
                claim.count_failures(fetched.failed, self._run.clock.now())
            admitted = self._schedule.admit(claim, records)
            if admitted.has_first_keyless:
                log_safely(logger, logging.WARNING, _KEYLESS, self._run.name, claim.partition)
            for message, error in admitted.broken:
                self._poison.take(message, error)
            if admitted.taken < len(records):
                rest = fetched._replace(records=records[admitted.taken :])
                self._fetched.appendleft(rest._replace(failed=0) if admitted.taken else rest)
                if admitted.taken:
                    continue  # settled ones take no room; perhaps no unsettled message can make any
                break
            claim.advance(fetched.next_offset)
        if self._poison.parker is not None:
            self._poison.parker.look()
        self._workers.wake()

    async def _fetch(self, claims: list[Claim], most: int) -> Sequence[Fetched] | None:
        """Fetch; return no records if the claims have changed meanwhile."""
        task = asyncio.current_task()
        assert task is not None
        changed = asyncio.get_running_loop().create_future()
        changed.add_done_callback(lambda _: self._is_fetching and task.cancel())
        self._run.assignment.join(changed)
        self._is_fetching = True
        try:
            return await self._source.fetch(claims, most)
        except asyncio.CancelledError:
            if changed.done() and task.uncancel() == 0:
                return ()
            raise
        finally:
            self._is_fetching = False
            self._run.assignment.leave(changed)

    async def _wait_for_room(self) -> None:
        """Wait for messages to leave; a batch does not wait for others meanwhile."""
        self._schedule.stall(is_stalled=True)
        self._workers.wake()
        await self._wait(self._run.room)
        self._schedule.stall(is_stalled=False)

    async def _wait(self, signal: Signal) -> None:
        every = self._source.capabilities.keep_alive_every
        until = math.inf if every is None else self._run.clock.now() + every
        await wait_until(self._run.clock, until, signal)
        if self._run.clock.now() >= until and isinstance(self._source, KeepsAlive):
            await self._source.keep_alive()


class Committer:
    """Commits the positions of open claims."""

    def __init__(
        self,
        source: Source,
        claims: Claims,
        schedule: Schedule,
        run: Run,
        *,
        every: float,
        after: int | None,
    ) -> None:
        can = source.capabilities
        self._at_once = can.shares == "keys" or can.settles_each
        self._source = source
        self._claims = claims
        self._run = run
        self._schedule = schedule
        self._every = every
        self._after = math.inf if after is None else after
        self._lock = asyncio.Lock()
        self._settled = run.settled
        self._committed = 0
        self._is_observed = bool(run.observers)
        self._is_unstored = False
        """Whether the last commit did not store the position of a claim that is still open."""
        self.commits = 0
        self.failures = 0
        self.error: BaseException | None = None
        """The error of the last commit; `None` if it succeeded."""

    async def run(self) -> None:
        """Commit whenever a commit is due, until cancelled."""
        while True:
            await self._wait_until_due()
            try:
                await self.commit()
            except Exception as error:
                end_if_cut(error)
                told = for_log(error)
                log_safely(logger, logging.WARNING, _FAILED, self._run.name, told, self._every)

    async def _wait_until_due(self) -> None:
        now = self._run.clock.now()
        until = now + self._every
        if self._at_once and self.error is None:
            if self._is_unstored:
                await wait_until(self._run.clock, now + AGAIN_AFTER, self._settled)
            elif not self._has_news():
                await wait_until(self._run.clock, math.inf, self._settled)
            return
        news = (self._settled,) if self._after < SMALL else ()
        look_every = LOOK_EVERY if SMALL <= self._after < math.inf else self._every
        while now < until:
            await wait_until(self._run.clock, min(until, now + look_every), *news)
            if self._schedule.acknowledged - self._committed >= self._after:
                return
            now = self._run.clock.now()

    async def commit(self, *, closing: bool = False) -> None:
        """Commit new positions. Raises the source's error; a later commit uses newer positions.

        Suspends until the source has responded. A cancelled commit may have been stored.
        """
        async with self._lock:
            new = self._new(closing=closing)
            if not new:
                return
            try:
                stored = await self._source.commit(new)
            except Exception as error:
                self.failures += 1
                self.error = error
                self._tell(new, error)
                raise
            self.commits += 1
            self.error = None
            for claim in stored:
                cast("Claim", claim).mark_stored(new[claim])
            left = new.keys() - set(stored)
            self._is_unstored = any(not cast("Claim", claim).is_closing for claim in left)
            self._tell({claim: new[claim] for claim in stored})

    def _has_news(self) -> bool:
        """Return whether a message was settled in an open claim since its last report."""
        return any(each.has_news for each in self._claims if not each.is_closing)

    def _tell(
        self, new: Mapping[SourceClaim, Position], error: BaseException | None = None
    ) -> None:
        if self._is_observed:
            offsets = {claim.partition: position.offset for claim, position in new.items()}
            self._run.observers.tell(lambda seen: seen.on_committed(self._run.name, offsets, error))

    def _new(self, *, closing: bool) -> dict[SourceClaim, Position]:
        self._committed = self._schedule.acknowledged
        new: dict[SourceClaim, Position] = {}
        for claim in self._claims:
            if claim.is_closed or (claim.is_closing and not closing):
                continue
            is_owed = claim.tracker.tells_each and (self.error is not None or claim.has_news)
            if self._at_once and not (is_owed or claim.has_news):
                continue
            snapshot = claim.snapshot()
            if is_owed or claim.owes(snapshot):
                new[claim] = snapshot
        return new
