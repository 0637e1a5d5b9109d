"""What is stored with a position: the changes of a partition's turns, and a mark. Pure.

1. A turn belongs to an event, by its offset. Its changes may only be stored with a position after
   that offset, since the event may run again before.
2. The changes stored with a position are those of the events before it; for each key, the last
   change in the order of the turns.
3. If a turn accesses a key changed by a *later* event, and that change is not stored, the two
   events are *tied*: no position between them is stored. Otherwise the state would contain a part
   of the later event, which runs again after a crash.
4. An interjection is not an event and never runs again. Its changes are stored as soon as all
   changes that it has accessed: its turn counts as part of the last event among them.
5. Forwarded records are sent with the changes of their turn, in the order of the turns.
6. The log is *full* at its limit of turns, and when ties leave no position to store: under load
   there might always be another tie. Then no later event begins until the running ones are
   complete, so that no further tie arises.

A state belongs to a position (`StateMark`):

7. Each transaction stores a mark alongside the state: the position, and the transaction's number.
   The metadata of the position contains the same number.
8. A state whose mark differs from the position is refused: events would be counted twice, or be
   missing. This happens if positions were moved or deleted without the state, if the state was
   emptied, or if one of them was restored from an older copy.
9. Rows or records without any mark, and a position without one in its metadata, are an initial
   state.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias

from ..._core.checks import known_format
from ..._core.source import Position

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


Stored: TypeAlias = "str | bytes"
"""A value in its stored form."""

NOTHING = -1
"""An offset before all others."""

_FORMAT = 1
_METADATA = "sluicegate-state"
COPY = f"{_METADATA} copy"
"""The metadata of a copy of a position, at a source."""


class ForwardedRecord(Protocol):
    """A record that a turn forwards."""

    @property
    def size(self) -> int:
        """Approximate size in bytes."""
        ...


@dataclass(frozen=True, slots=True)
class TurnChanges:
    """The changes of one turn, with `None` for a deleted key, and its forwarded records."""

    number: int
    offset: int
    changes: Mapping[str, Stored | None]
    forwarded: Sequence[ForwardedRecord]
    size: int


@dataclass(frozen=True, slots=True)
class TakenChanges:
    """The changes to store with a position."""

    offset: int
    changes: Mapping[str, Stored | None]
    replaced: Mapping[str, Stored | None]
    """The stored values of the changed keys."""
    forwarded: Sequence[ForwardedRecord]
    last: int
    """The number of the last turn in it."""


class ChangeLog:
    """The unstored changes of about `most` turns and `most_bytes` at most."""

    def __init__(self, most: int, most_bytes: int, at: int = 0) -> None:
        self._at = at
        """The last known stored position."""
        self._is_tied = False
        self._most = most
        self._most_bytes = most_bytes
        self._turns: list[TurnChanges] = []
        self._ties: list[tuple[int, int]] = []
        self._changed: dict[str, int] = {}
        """The last event, by offset, that has changed each key."""
        self._base: dict[str, Stored | None] = {}
        """The stored value of each changed key."""
        self._last = NOTHING
        """The last event, by offset, that has changed any key."""
        self._number = 0
        self._size = 0
        self._touched = NOTHING

    # -- turns -------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Begin a turn."""
        self._touched = NOTHING

    def touch(self, key: str) -> None:
        """Record an access of the turn to a key."""
        if (by := self._changed.get(key, NOTHING)) > self._touched:
            self._touched = by

    def touch_all(self) -> None:
        """Record an access of the turn to any number of keys."""
        self._touched = max(self._touched, self._last)

    def end(
        self,
        offset: int | None,
        changes: Mapping[str, Stored | None],
        before: Mapping[str, Stored | None],
        forwarded: Sequence[ForwardedRecord] = (),
    ) -> None:
        """End the turn of an event, or with `None` that of an interjection.

        `before` are the values of the changed keys when it began.
        """
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
        for key, value in before.items():
            self._base.setdefault(key, value)

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
        """Return the last position up to `offset` that no tie spans."""
        wanted = offset
        for low, high in sorted(self._ties, key=lambda tie: tie[1], reverse=True):
            if high < offset:
                break
            offset = min(offset, low)
        self._is_tied = offset < wanted and offset <= self._at
        return offset

    def owes(self, offset: int) -> bool:
        """Whether there are changes to store with this position."""
        return any(turn.offset < offset for turn in self._turns)

    def take(self, offset: int) -> TakenChanges:
        """Return the changes to store with a position that no tie spans."""
        changes: dict[str, Stored | None] = {}
        forwarded: list[ForwardedRecord] = []
        for turn in self._turns:
            if turn.offset < offset:
                changes.update(turn.changes)
                forwarded += turn.forwarded
        replaced = {key: self._base[key] for key in changes}
        return TakenChanges(offset, changes, replaced, forwarded, self._number)

    def confirm(self, taken: TakenChanges) -> None:
        """Record that these changes are stored."""
        self._at, self._is_tied = taken.offset, False
        self._turns = [
            turn for turn in self._turns if turn.number > taken.last or turn.offset >= taken.offset
        ]
        self._ties = [tie for tie in self._ties if tie[1] >= taken.offset]
        self._size = sum([turn.size for turn in self._turns])
        self._changed, self._last = {}, NOTHING
        for turn in self._turns:
            self._note(turn.offset, turn.changes)
        base = {**self._base, **taken.changes}
        self._base = {key: base[key] for key in self._changed}


Mismatch = Literal["emptied", "moved", "behind"]
"""How a state and a position differ: the state has no mark although the position was stored with
one; the mark has another position; or it has the number of an earlier transaction.
"""


@dataclass(frozen=True, slots=True)
class StateMark:
    """The position to which a state belongs."""

    group: str
    topic: str
    """The topic of the source."""
    position: int
    number: int
    """Number of the transaction of a partition, starting at 1."""
    content: str = ""
    """The content of the state, in a form that can be compared; empty if it is not checked."""

    def encoded(self) -> str:
        """Encode the mark as text."""
        return json.dumps({**asdict(self), "format": _FORMAT})

    @classmethod
    def decoded(cls, value: str | bytes, option: str, place: str) -> StateMark:
        """Decode a mark of the state in a place, which an option names.

        Raises `ConfigError` for another format, and `ValueError`, `KeyError` or `TypeError` for
        other values.
        """
        fields = json.loads(value)
        known_format(option, place, fields["format"], _FORMAT)
        names = ("group", "topic", "position", "number", "content")
        return cls(*[fields[name] for name in names])

    @property
    def metadata(self) -> str:
        """The metadata of its position."""
        return f"{_METADATA} {self.number}"


def is_of_a_state(metadata: str) -> bool:
    """Whether the metadata of a position was stored by a transaction of a state, or copied."""
    return metadata.startswith(_METADATA)


def for_the_source(position: Position) -> Position:
    """Return a position without the metadata of a state, which is not a map of offsets."""
    return Position(position.offset) if is_of_a_state(position.metadata) else position


def mismatch(mark: StateMark | None, position: Position | None) -> Mismatch | None:
    """Return how the state of this mark and a position differ; `None` if they belong together."""
    if mark is None:
        is_stored = position is not None and is_of_a_state(position.metadata)
        return "emptied" if is_stored else None
    if position is None or position.offset != mark.position:
        return "moved"
    if is_of_a_state(position.metadata) and position.metadata != mark.metadata:
        return "behind"
    return None
