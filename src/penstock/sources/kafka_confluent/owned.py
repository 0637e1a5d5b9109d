"""A claim as its source reads it: what has arrived of it, and how far it has been delivered.

1. Everything before `told` has been delivered, everything before `ahead` has arrived.
2. What has arrived waits here until it is asked for, so a claim that is not asked for holds back
   none of the others.
3. A claim that is moved drops what has arrived, and is read anew from there.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from ..._core.source import Fetched

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..._clients.confluent.records import Delivered, Run
    from ..._core.source import SourceClaim


class ArrivingClaim:
    """A claim that is held."""

    __slots__ = (
        "_runs",
        "_size",
        "ahead",
        "at_end",
        "claim",
        "count",
        "has_to_move",
        "is_aside",
        "told",
    )

    def __init__(self, claim: SourceClaim, start: int) -> None:
        self.claim = claim
        self.told = self.ahead = start
        self.count = 0
        """Records that have arrived and not been delivered."""
        self.at_end = False
        """Whether the partition had no more records when it was last read."""
        self.is_aside = False
        """Whether it is not read, because nothing of it is wanted."""
        self.has_to_move = False
        """Whether it is to be read anew, from `ahead` on."""
        self._size = 0
        self._runs: deque[tuple[Sequence[Delivered], int]] = deque()

    @property
    def bytes(self) -> int:
        """Bytes of what has arrived, as if all records were as large as the newest."""
        return self.count * self._size

    @property
    def has_news(self) -> bool:
        """Whether `take` has something."""
        return bool(self._runs)

    def arrive(self, run: Run) -> None:
        """Take in what has been read."""
        self.at_end = not run.records
        if run.next_offset > self.ahead:
            self._runs.append((run.records, run.next_offset))
            self.count += len(run.records)
            self._size = len(run.records[-1].value or b"") if run.records else self._size
            self.ahead = run.next_offset

    def take(self, most: int, least_span: int) -> Fetched:
        """The next records, at most so many. What follows and is settled is passed, if it is
        `least_span` long.
        """
        records: list[Delivered] = []
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
        """Stop or continue reading it."""
        self.is_aside = aside

    def read_anew(self) -> None:
        """Read it again from where it has arrived."""
        self.has_to_move = True

    def is_placed(self) -> None:
        """Note that it is read from `ahead` on."""
        self.has_to_move = False
