"""The changes of a partition's turns that are not stored yet. Pure.

1. A turn belongs to an event, by its offset. Its changes may be stored with a position behind that
   offset, and with no other: before that, the event may run again.
2. What is stored at a position are the changes of the events before it, the last one of each key in
   the order of the turns.
3. A turn that has touched what a *later* event had changed, and is not stored, *ties* the two: no
   position between them is stored. Otherwise the state would hold a part of the later event, which
   runs again after a crash.
4. An interjection is no event and never runs again. Its changes are stored as soon as those are that
   it has touched: its turn counts as one of the last event among them.
5. Records that a turn forwards go with its changes, in the order of the turns.
6. The log is *full* with many turns, and also once ties leave no position that could be stored: under
   load there may always be another one. Then no later event begins until those inside are complete,
   which ties nothing any more.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

Stored: TypeAlias = "str | bytes"
"""A value as it is kept."""

NOTHING = -1
"""Before any offset."""


class ForwardedRecord(Protocol):
    """A record that a turn forwards."""

    @property
    def size(self) -> int:
        """About how many bytes it takes."""
        ...


@dataclass(frozen=True, slots=True)
class TurnChanges:
    """What one turn has changed, with `None` for a key that was deleted, and what it forwards."""

    number: int
    offset: int
    changes: Mapping[str, Stored | None]
    forwarded: Sequence[ForwardedRecord]
    size: int


@dataclass(frozen=True, slots=True)
class TakenChanges:
    """What is to be stored at a position."""

    offset: int
    changes: Mapping[str, Stored | None]
    forwarded: Sequence[ForwardedRecord]
    last: int
    """The number of the last turn in it."""


class ChangeLog:
    """The changes that are not stored, of at most about `most` turns and `most_bytes`."""

    def __init__(self, most: int, most_bytes: int, at: int = 0) -> None:
        self._at = at
        """The stored position, as far as known."""
        self._is_tied = False
        self._most = most
        self._most_bytes = most_bytes
        self._turns: list[TurnChanges] = []
        self._ties: list[tuple[int, int]] = []
        self._changed: dict[str, int] = {}
        """The last event by offset that has changed a key."""
        self._last = NOTHING
        """The last event by offset that has changed anything."""
        self._number = 0
        self._size = 0
        self._touched = NOTHING

    # -- turns -------------------------------------------------------------------------------------

    def begin(self) -> None:
        """A turn begins."""
        self._touched = NOTHING

    def touch(self, key: str) -> None:
        """The turn reads or changes a key."""
        if (by := self._changed.get(key, NOTHING)) > self._touched:
            self._touched = by

    def touch_all(self) -> None:
        """The turn reads any number of keys."""
        self._touched = max(self._touched, self._last)

    def end(
        self,
        offset: int | None,
        changes: Mapping[str, Stored | None],
        forwarded: Sequence[ForwardedRecord] = (),
    ) -> None:
        """The turn of an event has ended, or with `None` that of an interjection."""
        touched = self._touched
        if offset is None:
            offset = touched
        elif touched > offset:
            self._ties.append((offset, touched))
        if not changes and not forwarded:
            return
        self._number += 1
        size = sum([len(key) + len(value or "") for key, value in changes.items()])
        size += sum([each.size for each in forwarded])
        self._turns.append(TurnChanges(self._number, offset, changes, forwarded, size))
        self._size += size
        self._note(offset, changes)

    def _note(self, offset: int, changes: Mapping[str, Stored | None]) -> None:
        changed = self._changed
        for key in changes:
            if offset >= changed.get(key, NOTHING):
                changed[key] = offset
        self._last = max(self._last, offset)

    @property
    def is_crowded(self) -> bool:
        """Whether it is full."""
        count = len(self._turns) + len(self._ties)
        return self._is_tied or count >= self._most or self._size >= self._most_bytes

    def __len__(self) -> int:
        return len(self._turns)

    # -- positions ---------------------------------------------------------------------------------

    def bound(self, offset: int) -> int:
        """The last position up to `offset` that no tie spans."""
        wanted = offset
        for low, high in sorted(self._ties, key=lambda tie: tie[1], reverse=True):
            if high < offset:
                break
            offset = min(offset, low)
        self._is_tied = offset < wanted and offset <= self._at
        return offset

    def owes(self, offset: int) -> bool:
        """Whether anything is to be stored at this position."""
        return any(turn.offset < offset for turn in self._turns)

    def take(self, offset: int) -> TakenChanges:
        """What is to be stored at a position that no tie spans."""
        changes: dict[str, Stored | None] = {}
        forwarded: list[ForwardedRecord] = []
        for turn in self._turns:
            if turn.offset < offset:
                changes.update(turn.changes)
                forwarded += turn.forwarded
        return TakenChanges(offset, changes, forwarded, self._number)

    def stored(self, taken: TakenChanges) -> None:
        """These are stored."""
        self._at, self._is_tied = taken.offset, False
        self._turns = [
            turn for turn in self._turns if turn.number > taken.last or turn.offset >= taken.offset
        ]
        self._ties = [tie for tie in self._ties if tie[1] >= taken.offset]
        self._size = sum([turn.size for turn in self._turns])
        self._changed, self._last = {}, NOTHING
        for turn in self._turns:
            self._note(turn.offset, turn.changes)
