"""What an opened retry knows of its destination: how long to pause, and which batch probes it
during an outage.

1. A throttled destination is left alone by every batch until a time; with tenants, by every batch
   of the tenant that it throttled.
2. An unavailable destination is probed by one batch at a time, at `probe_at`; the others wait for
   its success.
3. A batch that holds the probe and ends in any other way hands it on. Where the destination
   refuses, the probe passes to the next waiting batch after each refusal: the fault may lie in one
   batch only, and another one finds that out.
4. An empty retry budget counts as an outage too. It ends with a try that succeeds; one that fails,
   though it got an answer, does not end it.
5. A refusal of single items, which the destination names, is no outage: only their batches wait.
6. Every try gets a ticket when it begins. `accepted` is the highest ticket of a try of which the
   destination took something: the evidence by which `Search` tells a refused item from a
   destination that refuses everything.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from .._core.clock import Signal
from .._core.order.keys import accepted
from .search import ENOUGH

if TYPE_CHECKING:
    from .._core.condition import Condition

FAULT_KNOWN = 600.0
"""Seconds for which an item that was at fault makes the next refusal likely to be an item's fault,
too.
"""

MOST_NEEDED = 30


class Destination:
    """The state shared by all batches of one retry."""

    def __init__(self) -> None:
        self._throttled: dict[object, float] = {}
        self.changed = Signal()
        """Fires when an outage has ended, or when another batch may probe."""
        self.condition: Condition | None = None
        """Why writes fail at the moment; `None` while they succeed."""
        self.told: Condition | None = None
        """The same as batchers are told of it; `None` also where a decorator inside has told
        them.
        """
        self.since: float | None = None
        """When the outage or the throttling began."""
        self.is_down = False
        self.failures = 0
        self.lasted = 0.0
        """Seconds that the last try took."""
        self.has_failed = False
        """Whether it ended in an error."""
        self.tickets = 0
        """The ticket of the next try."""
        self.accepted = -1
        self.probe_at = 0.0
        """When the batch that holds the probe may use it."""
        self.probe_not_before = 0.0
        """Until when the destination itself has asked not to be probed."""
        self.is_short = False
        """Whether the outage is that of an empty retry budget."""
        self._fault_at = self._lied_at = -math.inf
        self._lies = 0
        self._probe: object | None = None
        self._line: dict[object, None] = {}
        self.of_items = object()
        """The name under which refusals of single items are reported."""
        self._refused: set[object] = set()

    @property
    def is_free(self) -> bool:
        """Whether nothing holds a first try back."""
        return not self.is_down and not self._throttled

    def throttle(self, until: float, tenant: object, now: float) -> None:
        """Leave the destination alone until then, for `tenant` only (`None`: for every batch, where
        there are no tenants).
        """
        self._throttled = {each: end for each, end in self._throttled.items() if end > now}
        known = accepted(tenant)
        self._throttled[known] = max(self._throttled.get(known, until), until)

    def throttled_until(self, tenant: object) -> float:
        """When a batch of `tenant` may be tried again."""
        return self._throttled.get(accepted(tenant), 0.0) if self._throttled else 0.0

    def is_troubled(self, condition: Condition, now: float, *, told: Condition | None) -> None:
        """A try failed for the destination's fault."""
        if self.since is None:
            self.since = now
        self.condition, self.told = condition, told

    def is_unavailable(self, who: object) -> bool:
        """A try of `who` met an outage; return whether `who` is the one to probe."""
        if not self.is_down:
            self.is_down = True
            self.failures = 0
        self.failures += 1
        self.is_short = False
        return self.may_probe(who)

    def is_out_of_budget(self, who: object) -> bool:
        """There is no budget for a try of `who`; return whether `who` is the one to probe."""
        probes = self.is_unavailable(who)
        self.is_short = True
        return probes

    def may_probe(self, who: object) -> bool:
        """Take the probe if no batch holds it, or stand in line for it; return whether `who` holds
        it now.
        """
        if self._probe is None:
            self._probe = who
        if self._probe is who:
            self._line.pop(who, None)
        else:
            self._line.setdefault(who)
        return self._probe is who

    def found_fault(self, now: float) -> None:
        """An item was proven to be at fault for a refusal."""
        self._fault_at = now

    def lied(self, now: float) -> None:
        """An item that was refused alone was accepted after all, so refusals prove less for a
        while.
        """
        self._lies = self.lies(now) + 1
        self._lied_at = now
        self._fault_at = -math.inf

    def lies(self, now: float) -> int:
        """How many such items there were, up to now without a long time in between."""
        return self._lies if now < self._lied_at + FAULT_KNOWN else 0

    def enough(self, now: float) -> int:
        """How many refusals prove an item's fault; see `Search`."""
        return min(ENOUGH * (1 + self.lies(now)), MOST_NEEDED)

    def knows_faults(self, now: float) -> bool:
        """Whether the last refusals were the fault of items, and not long ago."""
        return now < self._fault_at + FAULT_KNOWN

    def refuses_items(self, who: object) -> None:
        """Items of `who` are refused by name, and others are not."""
        self._refused.add(who)

    def took_items(self, who: object) -> bool:
        """`who` has ended; return whether it was the last one of which items were refused by
        name.
        """
        if who not in self._refused:
            return False
        self._refused.remove(who)
        return not self._refused

    @property
    def has_others(self) -> bool:
        """Whether further batches wait for the probe."""
        return bool(self._line)

    def pass_probe(self, who: object) -> None:
        """Hand the probe on to the batch that has waited longest, if there is one; `who` stands in
        line again.
        """
        if self._probe is not who or not self._line:
            return
        self._probe = next(iter(self._line))
        del self._line[self._probe]
        self._line[who] = None
        self.changed.fire()

    def schedule_probe(self, at: float, *, not_before: float = 0.0) -> None:
        """Let the batch that holds the probe use it at that time; `not_before` is the time until
        which the destination asked to wait.
        """
        self.probe_at, self.probe_not_before = at, not_before

    def ended(self, seconds: float, *, failed: bool) -> None:
        """A try has ended."""
        self.lasted, self.has_failed = seconds, failed

    def begin(self) -> int:
        """A try begins; return its ticket."""
        self.tickets += 1
        return self.tickets - 1

    def took(self, ticket: int) -> None:
        """The try with this ticket succeeded, as a whole or in part."""
        self.accepted = max(self.accepted, ticket)

    def is_there(self, *, throttles: bool = False) -> None:
        """A try got an answer: the outage, if any, has ended, and every batch may go on.
        `throttles`: that answer was a throttle.
        """
        self.condition = self.told = None
        if not throttles:
            self.since = None
        if self.is_down:
            self.is_down = self.is_short = False
            self._probe = None
            self._line.clear()
            self.changed.fire()

    def leave(self, who: object) -> None:
        """`who` has ended; if it held the probe, another batch takes it."""
        self._line.pop(who, None)
        if self._probe is who:
            self._probe = None
            self.changed.fire()
