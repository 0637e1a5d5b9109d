"""Selects the part of the log to read next, for slots with different cursors. Pure.

1. Slots whose cursors are close together form a group, and are read by one scan in the order of
   positions. A group is read up to the first cursor of the next group, and then becomes part of it.
2. The group that is farthest behind comes first. A second group gets half of the room, so that a
   slot with a long backlog does not starve the others; the other groups take turns as the second
   one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from .slots import HeldSlot

SPREAD = 10_000
"""The most positions between the cursors of a group."""


class Page(NamedTuple):
    """A part of the log to read: for each slot, the messages from its cursor to `last`."""

    slots: Sequence[HeldSlot]
    first: int
    last: int
    room: int
    """The most messages to read."""

    def reach(self, positions: Sequence[int], *, is_cut: bool = False) -> int:
        """Return the offset before which everything was read, if the read returned these positions;
        `is_cut`: it has left out others behind them.
        """
        is_whole = len(positions) < self.room and not is_cut
        return self.last + 1 if is_whole else positions[-1] + 1


def pages(wanted: Iterable[HeldSlot], horizon: int, room: int, turn: int) -> list[Page]:
    """Return the next pages, at most two, for `room` messages in all; none if all slots are read.

    `turn` changes with each call.
    """
    groups = _grouped(wanted, horizon)
    if not groups:
        return []
    ends = [*(group[0].cursor - 1 for group in groups[1:]), horizon]
    chosen = [0]
    if len(groups) > 1 and room > 1:
        chosen.append(1 + turn % (len(groups) - 1))
    elif len(groups) > 1 and turn % 2:
        chosen = [1 + turn // 2 % (len(groups) - 1)]
    shares = [room] if len(chosen) == 1 else [room - room // 2, room // 2]
    return [
        Page(groups[at], groups[at][0].cursor, ends[at], share)
        for at, share in zip(chosen, shares, strict=True)
    ]


def _grouped(wanted: Iterable[HeldSlot], horizon: int) -> list[list[HeldSlot]]:
    groups: list[list[HeldSlot]] = []
    behind = [held for held in wanted if held.cursor <= horizon]
    for held in sorted(behind, key=lambda held: held.cursor):
        if not groups or held.cursor > groups[-1][0].cursor + SPREAD:
            groups.append([])
        groups[-1].append(held)
    return groups
