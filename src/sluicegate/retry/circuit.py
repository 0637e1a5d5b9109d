"""The state machine of a circuit breaker. Pure: no clock, no tasks.

1. *Closed*: every call is admitted. Calls of the last `window` seconds are counted. The circuit
   opens when the failure rate, the slow rate or the number of failures in a row reaches its limit.
2. *Open*: no call is admitted until its time is up. The first call after that makes the circuit
   half open.
3. *Half open*: one call is admitted as a probe. If it succeeds, the circuit closes; a failed or slow
   probe opens it again, for twice as long.
4. A call whose result says nothing about the destination is not counted. If it was a probe, another
   call replaces it.
5. The result of a call that was admitted before the last change of state is not counted.
"""

from __future__ import annotations

import enum
import math
from collections import deque
from dataclasses import dataclass
from typing import NamedTuple

SLICES = 10
"""Number of slices of the window. Between nine and ten tenths of it are counted, in constant
memory.
"""


class CircuitState(enum.Enum):
    """State of a circuit breaker.

    `CLOSED` admits every write and counts failures. `OPEN` admits none for `open_for` seconds.
    `HALF_OPEN` admits one probe, whose result closes or opens it.
    """

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


class Verdict(enum.Enum):
    """The effect of one call's result on the circuit."""

    SUCCESS = "success"
    FAILURE = "failure"
    NEUTRAL = "neutral"


@dataclass(frozen=True, slots=True, kw_only=True)
class CircuitRules:
    """Settings of a circuit breaker. Durations are seconds."""

    failure_rate: float | None
    slow_rate: float | None
    slow_after: float | None
    consecutive: int | None
    window: float
    min_calls: int
    open_for: float
    longest_open: float


class Ticket(NamedTuple):
    """An admitted call."""

    started: float
    era: int
    is_probe: bool


@dataclass(slots=True)
class _Slice:
    number: int
    calls: int = 0
    failures: int = 0
    slow: int = 0

    def add(self, *, failed: bool, slow: bool) -> None:
        self.calls += 1
        self.failures += failed
        self.slow += slow


class CallWindow:
    """Counts of calls within the window."""

    def __init__(self, seconds: float) -> None:
        self.calls = 0
        self.failures = 0
        self.slow = 0
        self._width = seconds / SLICES
        self._slices: deque[_Slice] = deque()

    def add(self, now: float, *, failed: bool, slow: bool) -> None:
        """Count a call that has ended."""
        number = math.floor(now / self._width)
        slices = self._slices
        while slices and slices[0].number <= number - SLICES:
            old = slices.popleft()
            self.calls -= old.calls
            self.failures -= old.failures
            self.slow -= old.slow
        if not slices or slices[-1].number != number:
            slices.append(_Slice(number))
        slices[-1].add(failed=failed, slow=slow)
        self.calls += 1
        self.failures += failed
        self.slow += slow


class Circuit:
    """The circuit of one opened breaker. Times are the clock's monotonic seconds."""

    def __init__(self, rules: CircuitRules) -> None:
        self.state = CircuitState.CLOSED
        self.opened_until = 0.0
        """The time from which an open circuit admits a probe."""
        self._rules = rules
        self._era = 0
        self._window = CallWindow(rules.window)
        self._in_a_row = 0
        self._openings = 0
        self._is_probing = False

    def admit(self, now: float) -> Ticket | None:
        """Admit a call, or return `None` to refuse it."""
        if self.state is CircuitState.CLOSED:
            return Ticket(now, self._era, is_probe=False)
        if self.state is CircuitState.OPEN:
            if now < self.opened_until:
                return None
            self._enter(CircuitState.HALF_OPEN)
        if self._is_probing:
            return None
        self._is_probing = True
        return Ticket(now, self._era, is_probe=True)

    def retry_at(self) -> float:
        """Return the time for the next request for admission; infinite if it depends on the end of
        a probe.
        """
        return self.opened_until if self.state is CircuitState.OPEN else math.inf

    def ended(self, ticket: Ticket, now: float, verdict: Verdict) -> None:
        """Count an admitted call that has ended."""
        if ticket.era != self._era:
            return
        slow = verdict is not Verdict.NEUTRAL and self._is_slow(ticket, now)
        self._count(ticket, now, verdict, slow=slow)

    def cancelled(self, ticket: Ticket, now: float) -> None:
        """Count a cancelled call as slow if it had already exceeded `slow_after`; otherwise do not
        count it.
        """
        if ticket.era != self._era:
            return
        slow = self._is_slow(ticket, now)
        self._count(ticket, now, Verdict.SUCCESS if slow else Verdict.NEUTRAL, slow=slow)

    def _is_slow(self, ticket: Ticket, now: float) -> bool:
        slow_after = self._rules.slow_after
        return slow_after is not None and now - ticket.started >= slow_after

    def _count(self, ticket: Ticket, now: float, verdict: Verdict, *, slow: bool) -> None:
        if ticket.is_probe:
            self._probe_ended(now, verdict, slow=slow)
        elif verdict is not Verdict.NEUTRAL:
            self._call_ended(now, failed=verdict is Verdict.FAILURE, slow=slow)

    def _probe_ended(self, now: float, verdict: Verdict, *, slow: bool) -> None:
        self._is_probing = False
        if verdict is Verdict.FAILURE or slow:
            self._open(now)
        elif verdict is Verdict.SUCCESS:
            self._openings = 0
            self._enter(CircuitState.CLOSED)

    def _call_ended(self, now: float, *, failed: bool, slow: bool) -> None:
        self._window.add(now, failed=failed, slow=slow)
        self._in_a_row = self._in_a_row + 1 if failed else 0
        if self._is_too_much():
            self._open(now)

    def _is_too_much(self) -> bool:
        rules, window = self._rules, self._window
        if rules.consecutive is not None and self._in_a_row >= rules.consecutive:
            return True
        if window.calls < rules.min_calls:
            return False
        failing = (
            rules.failure_rate is not None and window.failures >= rules.failure_rate * window.calls
        )
        return failing or (
            rules.slow_rate is not None and window.slow >= rules.slow_rate * window.calls
        )

    def _open(self, now: float) -> None:
        rules = self._rules
        self.opened_until = now + min(
            rules.longest_open, rules.open_for * 2.0 ** min(self._openings, 64)
        )
        self._openings += 1
        self._enter(CircuitState.OPEN)

    def _enter(self, state: CircuitState) -> None:
        self.state = state
        self._era += 1
        self._window = CallWindow(self._rules.window)
        self._in_a_row = 0
        self._is_probing = False
