"""Fires the schedules of a queue, as a part of its consumers.

1. Every consumer of a queue fires its schedules. All of them compute the same ticks; the server lets the
   first one fire a tick (see `0003_schedules.sql`).
2. A consumer reads when the next tick is due along with its membership, and with the state of a queue
   without ready jobs: no statement is added for a queue without schedules.
3. The server's clock decides. The process measures only the time until the next tick, and reads it again
   with each renewal of its membership, so it notices a step of the server's clock.
4. A schedule that cannot be fired, as while the queue is full, does not delay others. Its ticks stay due.
5. After a failure, half as many ticks are fired in a transaction: for all of them the queue may have no
   room, or the server too little time.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ..._core.classify import caused
from ..._core.clock import Signal, wait_until
from ..._core.errors import ConfigError, MissingExtra, UnavailableError
from ..._core.text import text_of
from ..client.errors import is_lost, sqlstate
from .ring import ring_slot
from .ticks import MOST_TICKS, Timing, due_ticks

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine

    from ..._core.clock import Clock
    from .leasing import DueSchedule, QueueLeases

RETRY_AFTER = 1.0
"""Seconds after a failure, or while another session has locked a schedule."""


class Firing:
    """Fires schedules as they become due."""

    def __init__(self, queue: QueueLeases, clock: Clock) -> None:
        self._queue = queue
        self._clock = clock
        self._at = math.inf
        """When the next tick is due, by the local clock."""
        self._most = MOST_TICKS
        """Maximum number of ticks of a schedule in a transaction."""
        self._news = Signal()

    def expect(self, seconds: float | None) -> None:
        """Note the seconds until the next tick; `None` if there is none."""
        self._at = math.inf if seconds is None else self._clock.now() + seconds
        self._news.fire()

    async def run(
        self,
        attempt: Callable[[str, Coroutine[None, None, object]], Awaitable[bool]],
        enqueued: Callable[[], None],
    ) -> None:
        """Fire due schedules forever; `attempt` reports errors, `enqueued` is called after jobs."""
        while True:
            while self._clock.now() < self._at:
                await wait_until(self._clock, self._at, self._news)
            has_worked = await attempt("firing schedules", self._fire(enqueued))
            if not has_worked or self._at <= self._clock.now():
                await self._clock.sleep(RETRY_AFTER)

    async def _fire(self, enqueued: Callable[[], None]) -> None:
        """Fire the due schedules, and read when the next tick is due."""
        failed: dict[str, Exception] = {}
        while due := await self._queue.due_schedules([*failed]):  # in parts, as are their ticks
            has_fired, failures = False, len(failed)
            for each in due:
                try:
                    has_fired |= await self._fire_one(each)
                except Exception as error:
                    if not _is_of_schedule(error):
                        raise
                    failed[each.name] = error
            if has_fired:
                enqueued()
            elif len(failed) == failures:
                break
        for name, failure in failed.items():
            more = f"; {len(failed) - 1} more failed" if len(failed) > 1 else ""
            told = f"the schedule {name!r}: {text_of(failure)}{more}"
            raise caused(UnavailableError(told), failure)
        self.expect(await self._queue.seconds_to_tick())
        if self._at > self._clock.now():  # not while the server still runs a call that failed here
            self._most = MOST_TICKS

    async def _fire_one(self, each: DueSchedule) -> bool:
        timing = Timing(each.cron, each.every, each.timezone)
        ticks, following = due_ticks(timing, each.catch_up, each.due, each.now, self._most)
        slot = None
        if each.key is not None and each.slot_function != "sha256":
            slot = ring_slot(each.key, each.slot_function)
        try:
            return await self._queue.fire(each, ticks, following, slot)
        except Exception:
            self._most = len(ticks) // 2 or self._most
            raise


def _is_of_schedule(error: Exception) -> bool:
    """Whether an error is about one schedule, and not about the server or this process."""
    if isinstance(error, (ConfigError, MissingExtra)):
        return True
    return sqlstate(error) is not None and not is_lost(error)
