"""Which items of a batch a destination refuses although it accepts others. Pure.

A destination that refuses a whole write (403, a missing table) refuses everything, as a rule; but
the fault may lie in one item. Giving the batch up would lose good items to an outage, and trying it
whole for ever would let one item block all others. So the batch is halved while the destination is
probed with it:

1. Of a refused part the first half is sent next, down to a single item. Parts go in the batch's
   order.
2. An item refused alone waits. It is sent again, alone, after each write that was begun later and
   accepted: its own batch's next parts, or other batches'.
3. Refusals count if an accepted write lies between any two of them: one outage counts once, however
   long it lasts. An item that was refused `enough` times, alone or within a part, and of these
   `ENOUGH_ALONE` times alone, is at fault if it is refused `IN_A_ROW` times then, one right after
   the other: every second or third request may go to a server that is ill. Within a part proves
   less than alone, since another item of the part may be at fault.
4. An item refused alone and accepted later was a lie: the destination refuses at random, or in
   several outages. The caller then asks for more refusals (`enough`).
5. Where nothing else is sent that could be accepted, an item that has been alone for `QUIET`
   seconds is at fault after `ENOUGH_IF_QUIET` refusals, unless there were lies.
6. After a lie, what is left goes as one part again. So does what was not sent yet when the first
   part is accepted.
7. With keys, an item does not go before one of its key that was refused alone. Without keys a batch
   is in order: what follows an item refused alone waits until the caller lets it pass, and then
   goes right after another refusal of that item, so that an outage which ends in between is likely
   to let it go first.

"Begun later" is judged by tickets, numbers that a retry gives to its tries in the order in which
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
"""Seconds."""


@dataclass(slots=True)
class Refusals:
    """The refusals of one item."""

    times: int = 0
    """How many, with an accepted write between any two."""
    ticket: int = 0
    """The first ticket given after the last one."""


@dataclass(slots=True)
class Alone:
    """An item that was refused alone."""

    since: float
    times: int = 0
    """How often, with an accepted write between any two."""
    run: int = 0
    """How often in a row, once it was refused often enough; it is sent again at once until it is
    clear.
    """


class Search:
    """The search in one batch. Indices are the batch's."""

    def __init__(self, keys: Sequence[object] | None = None) -> None:
        self._keys = keys
        self._parts: list[list[int]] = []
        """What has not been sent since it was cut off from a refused part, the first at the end."""
        self._refusals: dict[int, Refusals] = {}
        self._alone: dict[int, Alone] = {}
        self._has_accepted = False
        self._was_head = False
        """Whether the last try was of the first item refused alone, and was refused again."""

    @property
    def is_on(self) -> bool:
        """Whether the batch is being searched."""
        return bool(self._parts or self._alone)

    def next_part(self, pending: Sequence[int], accepted: int, *, may_pass: bool) -> Sequence[int]:
        """What to send next of the items that are pending.

        `accepted` is the highest ticket of a try that was accepted, `may_pass` whether items
        without keys may go before one refused alone.
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
        """Whether the next part is sent without a pause: the same item once more, or what is to
        follow its refusal.
        """
        if any(known.run for known in self._alone.values()):
            return True
        return may_pass and self._was_head and self._keys is None and bool(self._parts)

    @property
    def alone_since(self) -> float | None:
        """When the first item of the batch that waits alone was first refused alone; `None` where
        none does.
        """
        return self._alone[min(self._alone)].since if self._alone else None

    @property
    def is_stuck(self) -> bool:
        """Whether nothing of the batch can be sent but items that were refused alone."""
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
        """A part was refused as a whole; return the item that is at fault, if that is proven now.

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
        alone.times += is_counted or not alone.times
        self._was_head = index == min(self._alone)
        times = self._refusals[index].times
        is_long = is_quiet and self.is_stuck and now >= alone.since + QUIET
        is_enough = (
            times >= ENOUGH_IF_QUIET if is_long else times >= enough and alone.times >= ENOUGH_ALONE
        )
        alone.run = alone.run + 1 if is_enough else 0
        return index if alone.run == IN_A_ROW else None

    def _count(self, part: Sequence[int], accepted: int, next_ticket: int) -> bool:
        """Count a refusal for each item of a part; return whether it counts for the last of
        them.
        """
        counts = False
        for index in part:
            known = self._refusals.setdefault(index, Refusals())
            counts = known.times == 0 or accepted >= known.ticket
            known.times += counts
            known.ticket = next_ticket
        return counts

    def interrupted(self) -> None:
        """A try ended in another way than by acceptance or refusal."""
        self._was_head = False
        for known in self._alone.values():
            known.run = 0

    def accepted(self, part: Sequence[int]) -> bool:
        """The destination took something of a part; return whether that gives a refusal the lie."""
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
        """The items of a part that no item refused alone holds back."""
        if self._keys is None or not self._alone:
            return list(part)
        held = {self._keys[index] for index in self._alone}
        return [index for index in part if self._keys[index] not in held]
