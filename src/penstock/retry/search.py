"""Search for the items of a batch that a destination refuses although it accepts others. Pure.

A destination that refuses a whole write (403, a missing table) refuses everything, as a rule; but
the fault may lie in one item. Failing the batch would lose good items to an outage, and sending it
whole for ever would let one item block all others. So the batch is halved while it probes the
destination:

1. The first half of a refused part is sent next, down to a single item. Parts are sent in the
   batch's order.
2. An item refused alone waits. It is sent again, alone, after each write that began later and was
   accepted: a later part of its own batch, or another batch.
3. Refusals count if an accepted write lies between any two of them: one outage counts once, however
   long it lasts. An item that was refused `enough` times, alone or within a part, and of these
   `ENOUGH_ALONE` times alone, is at fault if it is then refused `IN_A_ROW` times, one directly
   after the other: every second or third request may reach a broken server. A refusal within a part
   proves less than one alone, since another item of the part may be at fault.
4. An item refused alone and accepted later is a *lie*: the destination refuses at random, or in
   several outages. The caller then requires more refusals (`enough`).
5. If no other write is left that could be accepted, an item that has been alone for `QUIET` seconds
   is at fault after `ENOUGH_IF_QUIET` refusals, unless there were lies.
6. After a lie, the remaining items are one part again. So are the unsent items when the first part
   is accepted.
7. With keys, an item is not sent before one of its key that was refused alone. Without keys a batch
   is in order: the items behind one refused alone wait until the caller lets them pass. Then they
   are sent directly after another refusal of that item, so that an outage which ends in between is
   likely to let it pass first.

"Later" is judged by tickets, numbers that a retry gives to its tries in the order in which they
begin.
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
"""Seconds."""


@dataclass(slots=True)
class Refusals:
    """The refusals of one item."""

    times: int = 0
    """Their number, with an accepted write between any two."""
    ticket: int = 0
    """The first ticket given after the last one."""

    def add(self, accepted: int, next_ticket: int) -> bool:
        """Add a refusal; return whether it counts."""
        counts = self.times == 0 or accepted >= self.ticket
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
    """Refusals in a row, once there were enough; the item is sent again at once until it is
    accepted or at fault.
    """

    def refused(self, *, is_counted: bool) -> None:
        """Add a refusal alone; the first counts in any case."""
        self.times += is_counted or not self.times

    def in_a_row(self, *, is_enough: bool) -> bool:
        """Continue or end the run; return whether the item is at fault."""
        self.run = self.run + 1 if is_enough else 0
        return self.run == IN_A_ROW

    def interrupt(self) -> None:
        """End the run: the destination gave another answer."""
        self.run = 0


class Search:
    """The search in one batch. Indices are the batch's."""

    def __init__(self, keys: Sequence[object] | None = None) -> None:
        self._keys = keys
        self._parts: list[list[int]] = []
        """Halves of refused parts that have not been sent since, the first at the end."""
        self._refusals: dict[int, Refusals] = {}
        self._alone: dict[int, Alone] = {}
        self._has_accepted = False
        self._was_head = False
        """Whether the last try sent the first item refused alone, and was refused again."""

    @property
    def is_on(self) -> bool:
        """Whether the batch is being searched."""
        return bool(self._parts or self._alone)

    def next_part(self, pending: Sequence[int], accepted: int, *, may_pass: bool) -> Sequence[int]:
        """Return the pending items to send next.

        `accepted` is the highest ticket of an accepted try, `may_pass` whether items without keys
        may overtake one refused alone.
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
            if free:
                return free
        return [min(self._alone)] if self._alone else pending

    def goes_on_at_once(self, *, may_pass: bool) -> bool:
        """Whether the next part is sent without a pause: the same item once more, or the items that
        follow its refusal.
        """
        if any(known.run for known in self._alone.values()):
            return True
        return may_pass and self._was_head and self._keys is None and bool(self._parts)

    @property
    def alone_since(self) -> float | None:
        """When the first item that waits alone was first refused alone; `None` without one."""
        return self._alone[min(self._alone)].since if self._alone else None

    @property
    def is_stuck(self) -> bool:
        """Whether only items that were refused alone can be sent."""
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
    ) -> int | None:
        """Act on a part refused as a whole; return the item at fault, if that is proven now.

        `is_quiet` says that no other batch waits to be sent, and that there were no lies.
        """
        self._was_head = False
        is_counted = self._count(part, accepted, next_ticket)
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

    def _count(self, part: Sequence[int], accepted: int, next_ticket: int) -> bool:
        """Count a refusal for each item of a part; return whether it counts for the last one."""
        counts = False
        for index in part:
            counts = self._refusals.setdefault(index, Refusals()).add(accepted, next_ticket)
        return counts

    def interrupted(self) -> None:
        """Act on a try that ended neither in acceptance nor in refusal."""
        self._was_head = False
        for known in self._alone.values():
            known.interrupt()

    def accepted(self, part: Sequence[int]) -> bool:
        """Act on a part of which an item was accepted; return whether a refusal was a lie."""
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
        """The items of a part that are not behind one of their key refused alone."""
        if self._keys is None or not self._alone:
            return list(part)
        held = {self._keys[index] for index in self._alone}
        return [index for index in part if self._keys[index] not in held]
