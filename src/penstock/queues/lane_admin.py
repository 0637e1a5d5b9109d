"""The keys of a queue: looking at them, and blocking, parking or continuing them.

1. A change is one statement: it happens as a whole or not at all, also when its caller is cancelled.
2. A lease that is out when its key is parked or continued is settled as ever: it is fenced by its
   number.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .._core import checks
from .._core.checks import bad
from .._core.errors import RefusedError
from .queue_queries import STATES, QueueQueries

if TYPE_CHECKING:
    from .queue_stats import LaneState, LaneStats, StoredQueue
    from .schema_access import SchemaAccess

COUNT_TO = 1000
"""Default number of jobs of a key up to which they are counted."""
_RESUME = "SELECT {schema}.resume_lane($1, $2, $3, $4)"
_PARK = "SELECT {schema}.park_lane($1, $2, $3)"


class LaneAdmin:
    """The keys of one queue. Made by `QueueAdmin.keys`.

    Methods take the key of a job; in a queue with `ordering_required`, whose jobs are one lane, no
    key. They raise `ConfigError` for a key in another state, and the errors of `QueueAdmin`.
    """

    def __init__(self, access: SchemaAccess, queue: StoredQueue) -> None:
        self._access = access
        self._queries = QueueQueries(access)
        self._queue = queue

    async def lanes(
        self, state: LaneState | None = None, *, limit: int = 100, count_to: int = COUNT_TO
    ) -> list[LaneStats]:
        """Keys with work, in one state or blocked ones first, then parked, leased, ready, delayed.

        Args:
            state: only these.
            limit: the most keys; default 100.
            count_to: the most jobs that are counted for each; default 1,000.
        """
        states = STATES if state is None else (checks.choice("state", state, STATES),)
        most, jobs = checks.count("limit", limit), checks.count("count_to", count_to)
        return await self._queries.lanes(self._queue, states, most, jobs)

    async def unblock(self, key: str = "", *, skip: bool = False) -> None:
        """Continue a blocked or parked key with its first job, whose attempts stay counted.

        A job that had all of its attempts has one more.

        Args:
            key: the key.
            skip: make that job a dead letter first, and continue behind it.

        Raises `RefusedError` for a skip while a consumer has a lease of the key.
        """
        await self._resume(key, skip=skip, keeps_attempts=True)

    async def park(self, key: str = "", reason: str = "parked by an operator") -> bool:
        """Give out no more jobs of a key, until `unpark`; one without jobs is parked, too.

        Jobs that are enqueued meanwhile wait in order. Returns whether a consumer has a lease of
        it now, which it still settles.
        """
        checked = self._key(key)
        ((state,),) = await self._access.rows(
            _PARK, self._queue.name, checked, checks.text("reason", reason)
        )
        return bool(state == "leased")

    async def unpark(self, key: str = "") -> None:
        """Continue a parked or blocked key in order, with its attempts counted from 0."""
        await self._resume(key, skip=False, keeps_attempts=False)

    async def _resume(self, key: str, *, skip: bool, keeps_attempts: bool) -> None:
        values = (self._queue.name, self._key(key), skip, keeps_attempts)
        ((state,),) = await self._access.rows(_RESUME, *values)
        if state == "missing":
            where = f"the queue {self._queue.name}"
            rule = (
                f"is neither blocked nor parked in {where}; `penstock queue lanes` lists such keys"
            )
            raise bad("key", key, rule)
        if state == "leased":
            text = f"a consumer has a lease of the key {key!r} of the queue {self._queue.name}"
            raise RefusedError(text, repair="wait until it has ended, or has expired")

    def _key(self, key: str) -> str:
        if self._queue.settings.ordering_required:
            if key:
                rule = "must be left out: the queue has ordering_required, so its jobs are one lane"
                raise bad("key", key, rule)
            return key
        return checks.text("key", key, empty=True)

    def __repr__(self) -> str:
        return f"LaneAdmin({self._queue.name!r})"
