"""Claims of more jobs, beside the fetches.

1. One claim is under way at a time, in a task of its own: a fetch that is cancelled leaves it alone,
   and what it brings waits for the next fetch. So no lease is forgotten for that.
2. A claim asks for as many keys as hold what the fetch has room for, by the last claims. What they
   hold beyond that waits here, under its leases. While fewer keys are ready than that, each is leased
   with more of its jobs: no other key waits for them.
3. A lease ends `lease` seconds after it was asked for, at the latest by the server's clock, which
   has begun later.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..._clients.postgres.queues.leasing import QueueLeases
    from ..._core.clock import Clock
    from .leases import LeaseBook
    from .options import QueueOptions

WEIGHT = 0.25
"""The weight of the last claim in the average of jobs per key."""
FEW_KEYS = 10
"""How many times as many jobs of a key are leased while few keys are ready."""


class Claimer:
    """Claims jobs for one open source."""

    def __init__(
        self, queue: QueueLeases, book: LeaseBook, options: QueueOptions, clock: Clock
    ) -> None:
        self._queue = queue
        self._book = book
        self._options = options
        self._clock = clock
        self._task: asyncio.Task[int] | None = None
        self._per_lane = float(options.per_key)
        """The average number of jobs of a claimed key."""
        self._are_few = False
        """Whether the last claim found fewer keys than it asked for."""
        self.heard = 0
        """The news that had been heard when the last claim began: it may have seen no later ones."""

    async def claim(self, most: int, heard: int) -> int:
        """Claim about `most` more jobs; return the number of leases. Raises errors of the client.

        `heard` counts the news so far. A cancelled call leaves a claim under way, whose leases the book
        has once it ends: the next call waits for that one.
        """
        if self._task is None:
            self.heard = heard
            self._task = asyncio.get_running_loop().create_task(self._claim(most))
        task = self._task
        try:
            return await asyncio.shield(task)
        finally:
            if task.done() and self._task is task:
                self._task = None

    async def _claim(self, most: int) -> int:
        options, asked_at = self._options, self._clock.now()
        lanes = max(1, round(most / self._per_lane))
        per = options.per_key * FEW_KEYS if self._are_few else options.per_key
        async with self._clock.timeout_at(asked_at + options.lease):  # they have ended then
            jobs = await self._queue.claim(lanes, min(most, per), most, options.lease)
        leases = self._book.claimed(jobs, asked_at + options.lease)
        of_lanes = [job.lease for job in jobs if job.lane is not None]
        found = len(set(of_lanes))
        self._are_few = found < lanes
        if found:
            self._per_lane += WEIGHT * (len(of_lanes) / found - self._per_lane)
        return leases

    async def close(self) -> None:
        """Wait for a claim that is under way, so that its leases can be given back.

        A cancelled call leaves it alone; its leases run out.
        """
        if self._task is not None:
            self._task.add_done_callback(_ignored)
            await asyncio.wait([self._task])
            self._task = None


def _ignored(task: asyncio.Task[int]) -> None:
    """Take the error that no fetch is left to tell."""
    if not task.cancelled():
        task.exception()
