"""Fetching of records from open claims, limited by the room in the window.

1. Nothing is fetched while the window is full. It counts as full until it falls below the
   threshold.
2. Fetched records that exceed the limit in bytes wait here, and are admitted before others.
3. While nothing is fetched, `keep_alive` keeps the source in its group.
4. A waiting fetch is restarted when a claim begins or is resumed.
5. A source of short claims is also queried without a claim, since it begins claims during the
   query.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import deque
from typing import TYPE_CHECKING, cast

from .._core.clock import wait_until
from .._core.logs import log_safely
from .._core.source import KeepsAlive

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from .._core.clock import Signal
    from .._core.source import Fetched, Source, SourceRecord
    from .claim import Claim
    from .claims import Claims
    from .commons import Commons
    from .poison import Poison
    from .schedule import Schedule
    from .workers import Workers

logger = logging.getLogger("sluicegate.consumer")

_KEYLESS = (
    "%s: %s has records without a key, which are handled one after another; "
    'pass keyless="parallel" if their order does not matter'
)


class Poller:
    """The task that moves records from the source into the schedule."""

    def __init__(
        self,
        source: Source,
        claims: Claims,
        schedule: Schedule,
        workers: Workers,
        commons: Commons,
        *,
        poison: Poison,
        fetch_max: int,
    ) -> None:
        self._source = source
        self._claims = claims
        self._schedule = schedule
        self._workers = workers
        self._poison = poison
        self._name = commons.name
        self._clock = commons.clock
        self._signals = commons.signals
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
                await self._wait(self._signals.claims)
                continue
            fetched = await self._fetch(wanted, min(window.room, self._fetch_max))
            if fetched is None:
                return
            self._fetched.extend(fetched)
            self._admit_fetched()
            await self._clock.sleep(0)

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
                claim.has_failed(fetched.failed, self._clock.now())
            admitted = self._schedule.admit(claim, records)
            if admitted.has_first_keyless:
                log_safely(logger, logging.WARNING, _KEYLESS, self._name, claim.partition)
            for message, error in admitted.broken:
                self._poison.take(message, error)
            if admitted.taken < len(records):
                rest = fetched._replace(records=records[admitted.taken :])
                self._fetched.appendleft(rest._replace(failed=0) if admitted.taken else rest)
                if admitted.taken:
                    continue  # settled ones take no room; perhaps no message inside can make any
                break
            claim.advance(fetched.next_offset)
        self._poison.look()
        self._workers.wake()

    async def _fetch(self, claims: list[Claim], most: int) -> Sequence[Fetched] | None:
        """Fetch; return no records if the claims have changed meanwhile."""
        task = asyncio.current_task()
        assert task is not None
        changed = asyncio.get_running_loop().create_future()
        changed.add_done_callback(lambda _: self._is_fetching and task.cancel())
        self._signals.claims.join(changed)
        self._is_fetching = True
        try:
            return await self._source.fetch(claims, most)
        except asyncio.CancelledError:
            if changed.done() and task.uncancel() == 0:
                return ()
            raise
        finally:
            self._is_fetching = False
            self._signals.claims.leave(changed)

    async def _wait_for_room(self) -> None:
        """Wait for messages to leave; a batch does not wait for others meanwhile."""
        self._schedule.stall(is_stalled=True)
        self._workers.wake()
        await self._wait(self._signals.room)
        self._schedule.stall(is_stalled=False)

    async def _wait(self, signal: Signal) -> None:
        every = self._source.traits.keep_alive_every
        until = math.inf if every is None else self._clock.now() + every
        await wait_until(self._clock, until, signal)
        if self._clock.now() >= until and isinstance(self._source, KeepsAlive):
            await self._source.keep_alive()
