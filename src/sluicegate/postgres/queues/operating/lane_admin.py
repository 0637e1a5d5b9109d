"""The keys of a queue: list, block, park and continue them.

1. A change is one statement: it takes effect completely or not at all, even if its caller is
   cancelled.
2. If a key has a lease when it is parked or continued, the lease is settled as usual: it is fenced
   by its number.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...._core import checks
from ...._core.checks import bad
from ...._core.errors import RefusedError
from .queue_queries import STATES, QueueQueries

if TYPE_CHECKING:
    from .queue_stats import LaneState, LaneStats, StoredQueue
    from .schema_access import SchemaAccess

COUNT_TO = 1000
"""Default limit for the counted jobs of a key."""
_RESUME = "SELECT {schema}.resume_lane($1, $2, $3, $4)"
_PARK = "SELECT {schema}.park_lane($1, $2, $3)"


class LaneAdmin:
    """The keys of one queue. Created by `QueueAdmin.keys`.

    Methods take the key of a job. In a queue with `ordering_required`, which has one lane, omit the
    key. Methods raise `ConfigError` for a key in another state, and the errors of `QueueAdmin`.
    """

    def __init__(self, access: SchemaAccess, queue: StoredQueue) -> None:
        self._access = access
        self._queries = QueueQueries(access)
        self._queue = queue

    async def lanes(
        self, state: LaneState | None = None, *, limit: int = 100, count_to: int = COUNT_TO
    ) -> list[LaneStats]:
        """Return keys with work, in one state or in the order blocked, parked, leased, ready, delayed.

        Args:
            state: only keys in this state.
            limit: the most keys; default 100.
            count_to: the limit for the count of each key's jobs; default 1,000.
        """
        states = STATES if state is None else (checks.choice("state", state, STATES),)
        most, jobs = checks.count("limit", limit), checks.count("count_to", count_to)
        return await self._queries.lanes(self._queue, states, most, jobs)

    async def unblock(self, key: str = "", *, skip: bool = False) -> None:
        """Continue a blocked or parked key with its first job, and keep the count of its attempts.

        A job without remaining attempts gets one more.

        Args:
            key: the key.
            skip: make that job a dead letter first, and continue after it.

        Raises `RefusedError` for a skip while a consumer has a lease on the key.
        """
        await self._resume(key, skip=checks.flag("skip", skip), keeps_attempts=True)

    async def park(self, key: str = "", reason: str = "parked by an operator") -> bool:
        """Stop giving out jobs of a key, until `unpark`. A key without jobs can be parked as well.

        Jobs enqueued in the meantime wait in order. Returns whether a consumer currently has a
        lease on the key, which it can still settle.
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
            rule = f"is neither blocked nor parked in {where}; `sluicegate queue lanes` lists such keys"
            raise bad("key", key, rule)
        if state == "leased":
            text = f"a consumer has a lease on the key {key!r} of the queue {self._queue.name}"
            raise RefusedError(text, repair="wait until it has ended, or has expired")

    def _key(self, key: str) -> str:
        if self._queue.settings.ordering_required:
            if key:
                rule = (
                    "must be omitted: the queue has ordering_required, so all jobs are in one lane"
                )
                raise bad("key", key, rule)
            return key
        return checks.text("key", key, empty=True)

    def __repr__(self) -> str:
        return f"LaneAdmin({self._queue.name!r})"
