"""Sticky routing: the slots of the ring owned by each consumer of a group.

1. Ranges are replaced in one transaction, which locks the row of the group. A range with a new
   owner drains: the owner gets no jobs from it while an earlier one has a lease there.
2. The previous layout is read under that lock, so that concurrent moves do not undo one another.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..._core import checks
from ..._core.checks import bad
from .queries import QueueQueries
from .ring import SlotRange, after_move, checked_range, in_parts

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ..records.access import SchemaAccess, SchemaStatements
    from .stats import RangeStats, StoredQueue


_ASSIGN = "SELECT {schema}.assign_ranges($1, $2, $3::int[], $4::int[], $5::text[], $6)"
_RANGES = """
SELECT r.lo, r.hi, r.consumer FROM {schema}.ring_range r WHERE r.queue = $1 AND r.grp = $2
ORDER BY r.lo
"""
_AUTOMATIC = """
INSERT INTO {schema}.queue_group AS g (queue, grp, automatic, moved_at)
VALUES ($1, $2, true, '-infinity') ON CONFLICT (queue, grp) DO UPDATE SET automatic = true
"""


class RangeAdmin:
    """The ranges of slots of one group of consumers. Created by `QueueAdmin.routing`.

    An assignment makes the ranges of the group manual: they stay until the next assignment or
    `balance`, even if consumers join or leave. While the queue has `ordering_required`, its ranges are
    stored and inactive, as `QueueAdmin.explain` reports: one consumer has all slots. Methods raise `ConfigError` for ranges that overlap
    or leave gaps, and the errors of `QueueAdmin`.
    """

    def __init__(self, access: SchemaAccess, queue: StoredQueue, group: str) -> None:
        if not queue.settings.sticky:
            raise bad("queue", queue.name, "is not sticky, so no consumer owns its slots")
        self._access = access
        self._queue = queue.name
        self._group = checks.text("group", group)

    async def ranges(self) -> list[RangeStats]:
        """Return the slot ranges of the group, in order."""
        return await QueueQueries(self._access).ranges(self._queue, self._group)

    async def move(self, lo: int, hi: int, consumer: str) -> list[SlotRange]:
        """Assign slots to a consumer, splitting other ranges as needed; return the assigned ranges.

        Args:
            lo: the first slot.
            hi: the last slot.
            consumer: their new owner.
        """
        moved = checked_range(lo, hi, consumer)
        async with self._access.transaction() as statements:
            await self._assign(statements, [], complete=False)  # locks the group
            found = after_move(await self._read(statements), moved)
            await self._assign(statements, found, complete=False)
        return found

    async def assign(
        self, ranges: Iterable[tuple[int, int, str]], *, complete: bool = True
    ) -> None:
        """Assign ranges in one step: a split, a merge or a whole layout.

        Args:
            ranges: the first slot, the last slot and the consumer of each. Each existing range must
                lie within their union, or outside of it.
            complete: whether they must cover all slots; default `True`.
        """
        checks.flag("complete", complete)
        found = [checked_range(*each) for each in ranges]
        if not found:
            raise bad("ranges", [], "must be at least one (first slot, last slot, consumer)")
        async with self._access.transaction() as statements:
            await self._assign(statements, found, complete=complete)

    async def balance(self) -> None:
        """Let the ranges follow the live consumers again.

        The ranges are converted to parts of 256 slots, each assigned to the consumer that has most
        of it. Consumers then gradually move parts towards an even share.
        """
        async with self._access.transaction() as statements:
            await self._assign(statements, [], complete=False)
            parts = in_parts(await self._read(statements))
            await self._assign(statements, parts, complete=False)
            await statements.rows(_AUTOMATIC, self._queue, self._group)

    async def _read(self, statements: SchemaStatements) -> list[SlotRange]:
        rows = await statements.rows(_RANGES, self._queue, self._group)
        return [SlotRange(*row) for row in rows]

    async def _assign(
        self, statements: SchemaStatements, ranges: list[SlotRange], *, complete: bool
    ) -> None:
        los, his, consumers = ([each[n] for each in ranges] for n in range(3))
        values = (self._queue, self._group, los, his, consumers, complete)
        await statements.rows(_ASSIGN, *values)

    def __repr__(self) -> str:
        return f"RangeAdmin({self._queue!r}, group={self._group!r})"
