"""Search for the items of a batch that a destination refuses although it accepts others. Pure.

A destination that refuses a whole write (403, a missing table) usually refuses everything, but the
fault may lie in one item. Failing the batch would lose good items to an outage. Sending it whole
forever would let one item block all others. So the batch is halved while it probes the destination:

1. The first half of a refused part is sent next, down to a single item. Parts are sent in the
   batch's order.
2. An item refused alone waits. It is sent again, alone, after each accepted write that began later:
   a later part of its own batch, or another batch.
3. Refusals count if an accepted write lies between any two of them: one outage counts once,
   regardless of its length. An item that was refused `enough` times, alone or within a part,
   including `ENOUGH_ALONE` times alone, is at fault if it is then refused `IN_A_ROW` times in
   direct succession: a broken server may receive every second or third request. A refusal within a
   part proves less than one alone, since another item of the part may be at fault.
   If the destination seems to be unavailable, an item may have crashed it, and the next try fails
   while it restarts. So there a refusal counts only if the destination was available when the try
   began.
4. An item refused alone and accepted later is a *lie*: the destination refuses at random, or in
   several outages. The caller then requires more refusals (`enough`).
5. If no other write remains that could be accepted, an item refused alone `QUIET` seconds ago is at
   fault after `ENOUGH_IF_QUIET` refusals, unless there were lies.
6. After a lie, the remaining items become one part again. The unsent items become one part when the
   first part is accepted.
7. With keys, an item does not overtake an earlier item of its key that was refused alone. Without
   keys a batch is ordered as a whole: the items behind an item refused alone wait until the caller
   lets them pass. Then they are sent directly after another refusal of that item, so that if an
   outage ends in between, that item is likely to be accepted first.

"Later" is decided by tickets, the numbers that a retry assigns to its tries in the order in which
they begin.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

ENOUGH = 5
ENOUGH_ALONE = 3
ENOUGH_IF_QUIET = 3
IN_A_ROW = 4
QUIET = 60.0
"""Seconds; see rule 5."""


@dataclass(slots=True)
class Refusals:
    """Refusals of one item."""

    times: int = 0
    """Number of refusals, with an accepted write between any two."""
    ticket: int = 0
    """The first ticket issued after the last refusal."""

    def add(self, accepted: int, next_ticket: int, *, proves: bool) -> bool:
        """Add a refusal; return whether it is counted. The first one always is."""
        counts = self.times == 0 or (proves and accepted >= self.ticket)
        self.times += counts
        self.ticket = next_ticket
        return counts


@dataclass(slots=True)
class Alone:
    """An item that was refused alone."""

    since: float
    times: int = 0
    """Refusals alone, with an accepted write between any two."""
    run: int = 0
    """Refusals in a row, once there were enough. The item is sent again immediately until it is
    accepted or at fault.
    """

    def refused(self, *, is_counted: bool) -> None:
        """Add a refusal alone; the first one always counts."""
        self.times += is_counted or not self.times

    def in_a_row(self, *, is_enough: bool) -> bool:
        """Continue or end the run; return whether the item is at fault."""
        self.run = self.run + 1 if is_enough else 0
        return self.run == IN_A_ROW

    def interrupt(self) -> None:
        """End the run, since the destination gave another answer."""
        self.run = 0


class Search:
    """The search in one batch. Indices are those of the batch."""

    def __init__(self, keys: Sequence[object] | None = None) -> None:
        self._keys = keys
        self._parts: list[list[int]] = []
        """Halves of refused parts that have not been sent since; the first is at the end."""
        self._refusals: dict[int, Refusals] = {}
        self._alone: dict[int, Alone] = {}
        self._has_accepted = False
        self._was_head = False
        """Whether the last try sent the first of the items refused alone, and it was refused again.
        """

    @property
    def is_on(self) -> bool:
        """Whether the batch is being searched."""
        return bool(self._parts or self._alone)

    def next_part(
        self, pending: Sequence[int], accepted: int, *, may_pass: bool, most: int | None = None
    ) -> Sequence[int]:
        """Return the pending items to send next, `most` of a part.

        `accepted` is the highest ticket of an accepted try. `may_pass` states whether items without
        keys may overtake an item refused alone.
        """
        if not self.is_on:
            return pending
        self._forget_all_but(pending)
        due = min(
            (
                index
                for index, known in self._alone.items()
                if known.run or accepted >= self._refusals[index].ticket
            ),
            default=None,
        )
        if due is not None:
            return [due]
        if self._alone and self._keys is None and not (may_pass and self._was_head):
            return [min(self._alone)]
        while self._parts:
            free = self._not_behind(self._parts.pop())
            if most is not None and len(free) > most:
                self._parts.append(free[most:])
            if free:
                return free[:most]
        return [min(self._alone)] if self._alone else pending

    def goes_on_at_once(self, *, may_pass: bool) -> bool:
        """Return whether the next part is sent without a pause: either the same item again, or the
        items that follow its refusal.
        """
        if any(known.run for known in self._alone.values()):
            return True
        return may_pass and self._was_head and self._keys is None and bool(self._parts)

    @property
    def alone_since(self) -> float | None:
        """The time at which the first waiting item was first refused alone; `None` without one."""
        return self._alone[min(self._alone)].since if self._alone else None

    @property
    def is_stuck(self) -> bool:
        """Whether only items refused alone can be sent."""
        return bool(self._alone) and not any(self._not_behind(part) for part in self._parts)

    def refused(
        self,
        part: Sequence[int],
        now: float,
        *,
        accepted: int,
        next_ticket: int,
        enough: int,
        is_quiet: bool,
        proves: bool = True,
    ) -> int | None:
        """Handle a part refused as a whole; return the item at fault, if that is now proven.

        `is_quiet` states that no other batch waits to be sent and that there were no lies. Without
        `proves` the refusal may be the effect of an earlier try.
        """
        self._was_head = False
        is_counted = self._count(part, accepted, next_ticket, proves=proves)
        if len(part) > 1:
            middle = len(part) // 2
            self._parts += [list(part[middle:]), list(part[:middle])]
            return None
        (index,) = part
        alone = self._alone.setdefault(index, Alone(now))
        alone.refused(is_counted=is_counted)
        self._was_head = index == min(self._alone)
        times = self._refusals[index].times
        is_long = is_quiet and self.is_stuck and now >= alone.since + QUIET
        is_enough = (
            times >= ENOUGH_IF_QUIET if is_long else times >= enough and alone.times >= ENOUGH_ALONE
        )
        return index if alone.in_a_row(is_enough=is_enough) else None

    def _count(self, part: Sequence[int], accepted: int, next_ticket: int, *, proves: bool) -> bool:
        """Count a refusal for each item of a part; return whether it was counted for the last item."""
        counts = False
        for index in part:
            known = self._refusals.setdefault(index, Refusals())
            counts = known.add(accepted, next_ticket, proves=proves)
        return counts

    def interrupted(self) -> None:
        """Handle a try that ended neither in acceptance nor in refusal."""
        self._was_head = False
        for known in self._alone.values():
            known.interrupt()

    def accepted(self, part: Sequence[int]) -> bool:
        """Handle a part in which an item was accepted; return whether an earlier refusal was a lie."""
        if not self.is_on:
            return False
        self._was_head = False
        is_lie = any(index in self._alone for index in part)
        if is_lie:
            self._parts, self._alone = [], {}
        elif not self._has_accepted:
            self._parts = (
                [sorted(index for part in self._parts for index in part)] if self._parts else []
            )
        self._has_accepted = True
        return is_lie

    def _forget_all_but(self, pending: Sequence[int]) -> None:
        left = set(pending)
        self._alone = {index: known for index, known in self._alone.items() if index in left}
        self._parts = [
            kept for part in self._parts if (kept := [index for index in part if index in left])
        ]
        if others := sorted(left.difference(self._alone, *self._parts)):
            self._parts.append(others)

    def _not_behind(self, part: Sequence[int]) -> list[int]:
        """Return the items of a part that are not behind an item of their key refused alone."""
        if self._keys is None or not self._alone:
            return list(part)
        held = {self._keys[index] for index in self._alone}
        return [index for index in part if self._keys[index] not in held]
