"""Claims more jobs, independently of fetches.

1. Only one claim is in progress at a time, in its own task. A cancelled fetch does not cancel it,
   and its jobs wait for the next fetch, so no lease is forgotten.
2. The number of keys to claim is estimated from the last claims, to fill the room of the fetch.
   Excess jobs wait here, under their leases. While fewer keys are ready than requested, each key is
   leased with more of its jobs, since no other key is waiting. This is not known after a claim that
   the limit in bytes may have cut.
3. A lease ends at the latest `lease` seconds after its request, by the local clock; its time on the
   server begins later.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ...._core.clock import Clock
    from ..jobs.leasing import QueueLeases
    from .leases import LeaseBook
    from .options import QueueOptions

WEIGHT = 0.25
"""Weight of the last claim in the average number of jobs per key."""
FEW_KEYS = 10
"""Factor for the jobs leased per key while few keys are ready."""


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
        """The average number of jobs per claimed key."""
        self._are_few = False
        """Whether the last claim found fewer keys than requested."""
        self.heard = 0
        """The count of news when the last claim began. It may have missed later ones."""

    async def claim(self, most: int, most_bytes: int, heard: int) -> int:
        """Claim about `most` more jobs, of at most `most_bytes` bytes unless the first is larger;
        return the number of leases. Raises errors of the client.

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
        leases = self._book.claimed(jobs, asked_at + options.lease)
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
            self._task.add_done_callback(_ignored)
            await asyncio.wait([self._task])
            self._task = None


def _ignored(task: asyncio.Task[int]) -> None:
    """Retrieve the error, since there is no fetch to raise it."""
    if not task.cancelled():
        task.exception()
