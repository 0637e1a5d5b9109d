"""A claim as seen by its source: its arrived records, and its delivery state.

1. All records before `told` have been delivered, all records before `ahead` have arrived.
2. Arrived records wait here until they are requested, so a claim without requests does not block
   the others.
3. A claim that is moved drops its arrived records, and is read again from its new offset.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from ..._core.source import Fetched

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..._core.source import SourceClaim, SourceRecord
    from .client.records import Run


class ArrivingClaim:
    """An open claim."""

    __slots__ = (
        "_runs",
        "ahead",
        "at_end",
        "claim",
        "count",
        "has_to_move",
        "is_aside",
        "newest",
        "told",
    )

    def __init__(self, claim: SourceClaim, start: int) -> None:
        self.claim = claim
        self.told = self.ahead = start
        self.count = 0
        """Number of records that have arrived and were not delivered."""
        self.at_end = False
        """Whether the partition had no more records when it was last read."""
        self.is_aside = False
        """Whether reading is paused because its records are not requested."""
        self.has_to_move = False
        """Whether reading has to restart at `ahead`."""
        self.newest = 0
        """The size of the newest record, in bytes."""
        self._runs: deque[tuple[Sequence[SourceRecord], int]] = deque()

    @property
    def bytes(self) -> int:
        """Estimated bytes of the arrived records, by the size of the newest one."""
        return self.count * self.newest

    @property
    def has_news(self) -> bool:
        """Whether `take` would return anything."""
        return bool(self._runs)

    def arrive(self, run: Run) -> None:
        """Add records that were read."""
        self.at_end = not run.records
        if run.next_offset > self.ahead:
            self._runs.append((run.records, run.next_offset))
            self.count += len(run.records)
            value = run.records[-1].value if run.records else None
            self.newest = len(value) if isinstance(value, bytes) else self.newest
            self.ahead = run.next_offset

    def take(self, most: int, least_span: int) -> Fetched:
        """Return the next records, up to `most`, and skip settled records after them if there are
        at least `least_span`.
        """
        records: list[SourceRecord] = []
        reached = self.told
        while self._runs:
            run, after = self._runs.popleft()
            room = most - len(records)
            if len(run) > room:
                self._runs.appendleft((run[room:], after))
                if room:
                    records += run[:room]
                    reached = records[-1].offset + 1
                break
            records += run
            reached = after
        self.count -= len(records)
        self.told = reached
        passed = self.claim.pass_settled(reached, least_span)
        if passed > reached:
            self.move(passed)
        return Fetched(self.claim, records, passed)

    def move(self, offset: int) -> None:
        """Continue at this offset."""
        self._runs.clear()
        self.count = 0
        self.told = self.ahead = offset
        self.has_to_move, self.at_end = True, False

    def set_aside(self, *, aside: bool) -> None:
        """Pause or continue reading."""
        self.is_aside = aside

    def read_anew(self) -> None:
        """Restart reading after the last arrived record."""
        self.has_to_move = True

    def is_placed(self) -> None:
        """Record that reading has started at `ahead`."""
        self.has_to_move = False
