"""State shared by all batches of one opened retry: throttling, outages, the last try. Pure.

1. No batch is sent to a throttled destination until the throttle ends. With tenants, only batches
   of the throttled tenant are held back.
2. An unavailable destination is probed by one batch at a time; the others wait for its success.
3. A batch that holds the probe and ends without success hands it on. If the destination refuses
   writes, the probe passes to the next waiting batch after each refusal: the fault may lie in one
   batch only, and another batch shows that.
4. An empty retry budget counts as an outage too. Only a try that succeeds ends it; a failed try
   does not, even if the destination answered.
5. A refusal of individual items, named by the destination, is not an outage: only their batches
   wait.
6. Every try gets a ticket when it begins. `accepted` is the highest ticket of a try in which the
   destination accepted at least one item; `Search` compares it with the tickets of refused tries,
   to distinguish a refused item from a destination that refuses everything.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from .._core.clock import Signal
from .._core.order.keys import accepted
from .search import ENOUGH

if TYPE_CHECKING:
    from .._core.delivery.host import Condition

FAULT_KNOWN = 600.0
"""Seconds for which, after an item was proven at fault, further refusals are assumed to be the
fault of items.
"""
MOST_NEEDED = 30
"""The highest number of refusals that prove an item's fault."""


class Throttles:
    """End of the throttle of each tenant; without tenants, the key `None` holds the throttle of all
    batches.
    """

    def __init__(self) -> None:
        self._until: dict[object, float] = {}

    def __bool__(self) -> bool:
        return bool(self._until)

    def until(self, tenant: object) -> float:
        """Return the time from which a batch of `tenant` may be sent again."""
        return self._until.get(accepted(tenant), 0.0) if self._until else 0.0

    def extend(self, tenant: object, until: float, now: float) -> None:
        """Hold back the batches of `tenant` until that time, unless they are held back for longer."""
        self._until = {each: end for each, end in self._until.items() if end > now}
        known = accepted(tenant)
        self._until[known] = max(self._until.get(known, until), until)


class OutageState:
    """The state shared by all batches of one retry."""

    def __init__(self) -> None:
        self.throttles = Throttles()
        self.probe = ProbeTurns()
        self.evidence = Evidence()
        self.condition: Condition | None = None
        """The reason why writes currently fail; `None` while they succeed."""
        self.told: Condition | None = None
        """The condition as reported to batchers; also `None` if an inner decorator has reported it.
        """
        self.has_told = False
        """Whether a condition was ever reported, so that a recovery must be reported too."""
        self.since: float | None = None
        """The time at which the outage or the throttling began."""
        self.is_down = False
        self.failures = 0
        """Failed tries in this outage."""
        self.is_short = False
        """Whether the outage was caused by an empty retry budget."""
        self.lasted = 0.0
        """Duration of the last try, in seconds."""
        self.has_failed = False
        """Whether the last try ended in an error."""
        self.of_items = object()
        """The name under which refusals of individual items are reported."""
        self._refused: set[object] = set()

    @property
    def is_quiet(self) -> bool:
        """Whether a first try needs no check: nothing holds it back, and the last try succeeded."""
        return not (self.has_failed or self.is_down or self.throttles)

    @property
    def is_free(self) -> bool:
        """Whether nothing holds a first try back."""
        return not self.is_down and not self.throttles

    def tried(self, seconds: float, *, failed: bool) -> None:
        """Record the end of a try."""
        self.lasted, self.has_failed = seconds, failed

    def set_condition(self, condition: Condition, now: float, *, told: Condition | None) -> None:
        """Store the reason for an outage or a throttle."""
        if self.since is None:
            self.since = now
        self.condition, self.told = condition, told
        self.has_told = self.has_told or told is not None

    def outage(self, batch: object, *, is_short: bool = False) -> bool:
        """Record that a try of `batch` met an outage or an empty budget; return whether it probes."""
        if not self.is_down:
            self.is_down = True
            self.failures = 0
        self.failures += 1
        self.is_short = is_short
        return self.probe.take(batch)

    def succeeded(self, ticket: int, seconds: float) -> None:
        """Record that a first try succeeded as a whole."""
        self.lasted, self.has_failed = seconds, False
        self.evidence.succeeded(ticket)
        if self.is_down or self.condition is not None or self.since is not None:
            self.answered()

    def answered(self, *, throttled: bool = False) -> None:
        """End the outage, if any, after an answer to a try."""
        self.condition = self.told = None
        if not throttled:
            self.since = None
        if self.is_down:
            self.is_down = self.is_short = False
            self.probe.end()

    def refuses_items(self, batch: object) -> None:
        """Record that items of `batch` are refused by name while others are accepted."""
        self._refused.add(batch)

    def leave(self, batch: object) -> bool:
        """Remove a batch that has ended; return whether it was the last with refused items."""
        self.probe.leave(batch)
        if batch not in self._refused:
            return False
        self._refused.remove(batch)
        return not self._refused


class ProbeTurns:
    """The queue of batches that may probe the destination, and the time of the next probe."""

    def __init__(self) -> None:
        self.changed = Signal()
        """Fires when the outage has ended or another batch may probe."""
        self.at = 0.0
        """The time at which the holder may send its probe."""
        self.not_before = 0.0
        """The end of the wait that the destination requested."""
        self._holder: object | None = None
        self._line: dict[object, None] = {}

    @property
    def has_others(self) -> bool:
        """Whether further batches wait for the probe."""
        return bool(self._line)

    def take(self, batch: object) -> bool:
        """Take the probe if it is free, or queue for it; return whether `batch` holds it now."""
        if self._holder is None:
            self._holder = batch
        if self._holder is batch:
            self._line.pop(batch, None)
        else:
            self._line.setdefault(batch)
        return self._holder is batch

    def schedule(self, at: float, *, not_before: float = 0.0) -> None:
        """Let the holder send its probe at that time."""
        self.at, self.not_before = at, not_before

    def pass_on(self, batch: object) -> None:
        """Hand the probe to the batch that has waited longest, if any; `batch` queues again."""
        if self._holder is not batch or not self._line:
            return
        self._holder = next(iter(self._line))
        del self._line[self._holder]
        self._line[batch] = None
        self.changed.fire()

    def leave(self, batch: object) -> None:
        """Remove a batch that has ended; if it held the probe, another batch may take it."""
        self._line.pop(batch, None)
        if self._holder is batch:
            self._holder = None
            self.changed.fire()

    def end(self) -> None:
        """Release every batch: the outage has ended."""
        self._holder = None
        self._line.clear()
        self.changed.fire()


class Evidence:
    """Accepted tries, items proven at fault, and refusals that turned out not to be an item's
    fault.
    """

    def __init__(self) -> None:
        self.tickets = 0
        """The ticket of the next try."""
        self.accepted = -1
        self._fault_at = self._lied_at = -math.inf
        self._lies = 0

    def begin(self) -> int:
        """Begin a try; return its ticket."""
        self.tickets += 1
        return self.tickets - 1

    def succeeded(self, ticket: int) -> None:
        """Record that the try with this ticket succeeded, as a whole or in part."""
        self.accepted = max(self.accepted, ticket)

    def found_fault(self, now: float) -> None:
        """Record that an item was proven to be at fault for a refusal."""
        self._fault_at = now

    def lied(self, now: float) -> None:
        """Record that an item refused alone was accepted later, which makes refusals weaker
        evidence for a while.
        """
        self._lies = self.lies(now) + 1
        self._lied_at = now
        self._fault_at = -math.inf

    def lies(self, now: float) -> int:
        """Return the number of recent such items; it restarts after `FAULT_KNOWN` seconds without
        one.
        """
        return self._lies if now < self._lied_at + FAULT_KNOWN else 0

    def enough(self, now: float) -> int:
        """Return the number of refusals that prove an item's fault; see `Search`."""
        return min(ENOUGH * (1 + self.lies(now)), MOST_NEEDED)

    def knows_faults(self, now: float) -> bool:
        """Return whether an item was recently proven at fault, with no lie since."""
        return now < self._fault_at + FAULT_KNOWN
