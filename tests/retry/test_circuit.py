"""The states of the circuit alone: no clock, no tasks.

White box: the state machine of the breaker.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluicegate.retry.circuit import SLICES, CallWindow, Circuit, CircuitRules, Verdict

OK, FAIL, NEUTRAL = Verdict.SUCCESS, Verdict.FAILURE, Verdict.NEUTRAL


def circuit(**changes: Any) -> Circuit:
    rules: dict[str, Any] = {
        "failure_rate": None,
        "slow_rate": None,
        "slow_after": None,
        "consecutive": 3,
        "window": 10.0,
        "min_calls": 4,
        "open_for": 5.0,
        "longest_open": 60.0,
    }
    return Circuit(CircuitRules(**{**rules, **changes}))


def where(machine: Circuit) -> str:
    return machine.state.value


def call(machine: Circuit, now: float, verdict: Verdict, seconds: float = 0.0) -> bool:
    """Make one complete call; return whether it was admitted."""
    ticket = machine.admit(now)
    if ticket is not None:
        machine.ended(ticket, now + seconds, verdict)
    return ticket is not None


def test_failures_in_a_row_open_it_and_a_success_between_starts_anew() -> None:
    """B-T20, batcher/B29."""
    machine = circuit()
    for verdict in (FAIL, FAIL, OK, FAIL, FAIL):
        assert call(machine, 0.0, verdict)
    assert where(machine) == "closed"
    assert call(machine, 0.0, FAIL)
    assert where(machine) == "open"
    assert not call(machine, 4.99, OK)


@pytest.mark.parametrize(
    ("failures", "calls", "state"),
    [(2, 3, "closed"), (1, 4, "closed"), (2, 4, "open"), (49, 100, "closed")],
)
def test_a_rate_means_something_from_the_least_number_of_calls_on(
    failures: int, calls: int, state: str
) -> None:
    machine = circuit(consecutive=None, failure_rate=0.5)
    for n in range(calls):
        call(machine, 0.0, FAIL if n >= calls - failures else OK)
    assert where(machine) == state


def test_what_is_older_than_the_window_is_forgotten() -> None:
    machine = circuit(consecutive=None, failure_rate=0.5)
    for when in (0.0, 0.1, 0.2):
        call(machine, when, FAIL)
    call(machine, 10.1, OK)
    call(machine, 10.2, FAIL)
    assert where(machine) == "closed"


def test_slow_calls_open_it_whatever_they_answered() -> None:
    machine = circuit(consecutive=None, slow_rate=0.5, slow_after=2.0)
    for seconds in (1.99, 1.99, 2.0):
        call(machine, 0.0, OK, seconds)
    assert where(machine) == "closed"
    call(machine, 0.0, FAIL, 3.0)
    assert where(machine) == "open"


def test_a_failed_probe_opens_it_for_twice_as_long_up_to_a_limit_and_success_resets_that() -> None:
    """B-T20: exactly one probe after the cool-down; success closes, failure opens again."""
    machine = circuit(consecutive=1, longest_open=17.0)
    call(machine, 0.0, FAIL)
    for length in (5.0, 10.0, 17.0, 17.0):
        due = machine.opened_until
        assert machine.admit(due - 1e-6) is None
        probe = machine.admit(due)
        assert probe is not None
        assert where(machine) == "half_open"
        assert machine.admit(due) is None
        machine.ended(probe, due, FAIL if length < 17.0 or due < 40.0 else OK)
        if where(machine) == "open":
            assert machine.opened_until == due + min(17.0, length * 2)
    assert where(machine) == "closed"
    call(machine, 100.0, FAIL)
    assert machine.opened_until == 105.0


def test_fifty_callers_at_once_give_exactly_one_probe() -> None:
    machine = circuit(consecutive=1)
    call(machine, 0.0, FAIL)
    tickets = [machine.admit(5.0) for _ in range(50)]
    (probe,) = [ticket for ticket in tickets if ticket is not None]
    assert where(machine) == "half_open"
    machine.ended(probe, 6.0, OK)
    assert where(machine) == "closed"


@pytest.mark.parametrize("seconds", [0.0, 1.9])
def test_a_cancelled_call_counts_nowhere_and_a_cancelled_probe_gives_its_place_back(
    seconds: float,
) -> None:
    """batcher/4b.10."""
    machine = circuit(slow_rate=0.5, slow_after=2.0)
    for verdict in (FAIL, FAIL):
        call(machine, 0.0, verdict)
    ticket = machine.admit(0.0)
    assert ticket is not None
    machine.cancelled(ticket, seconds)
    call(machine, 2.0, FAIL)
    assert where(machine) == "open"  # the failures still count as consecutive
    probe = machine.admit(7.0)
    assert probe is not None
    assert machine.admit(7.0) is None
    machine.cancelled(probe, 7.0 + seconds)
    assert where(machine) == "half_open"
    assert machine.admit(8.0) is not None


def test_a_call_that_is_cancelled_late_is_a_slow_one() -> None:
    machine = circuit(consecutive=None, slow_rate=1.0, slow_after=2.0, min_calls=1)
    ticket = machine.admit(0.0)
    assert ticket is not None
    machine.cancelled(ticket, 2.0)
    assert where(machine) == "open"
    probe = machine.admit(7.0)
    assert probe is not None
    machine.cancelled(probe, 9.5)
    assert where(machine) == "open"
    assert machine.opened_until == 19.5


def test_a_neutral_answer_neither_closes_nor_opens() -> None:
    machine = circuit(consecutive=1)
    call(machine, 0.0, NEUTRAL)
    assert where(machine) == "closed"
    call(machine, 0.0, FAIL)
    call(machine, 5.0, NEUTRAL)
    assert where(machine) == "half_open"
    call(machine, 5.0, OK)
    assert where(machine) == "closed"


def test_what_was_counted_before_it_opened_is_forgotten_when_it_closes() -> None:
    machine = circuit(failure_rate=0.5, min_calls=2)
    for verdict in (FAIL, FAIL):
        call(machine, 0.0, verdict)
    call(machine, 5.0, OK)
    assert where(machine) == "closed"
    call(machine, 5.0, FAIL)
    assert where(machine) == "closed"
    row = circuit(consecutive=2)
    for when, verdict in ((0.0, FAIL), (0.0, FAIL), (5.0, OK), (5.0, FAIL)):
        call(row, when, verdict)
    assert where(row) == "closed"


def test_a_late_cancellation_of_a_call_from_before_a_change_counts_nowhere() -> None:
    machine = circuit(consecutive=1, slow_rate=1.0, slow_after=2.0)
    early = machine.admit(0.0)
    call(machine, 0.0, FAIL)
    probe = machine.admit(5.0)
    assert early is not None
    assert probe is not None
    machine.cancelled(early, 5.0)
    assert where(machine) == "half_open"


def test_answers_of_calls_from_before_a_change_count_nowhere() -> None:
    machine = circuit(consecutive=1)
    early = [machine.admit(0.0) for _ in range(3)]
    for ticket, verdict in zip(early, (FAIL, OK, FAIL), strict=True):
        assert ticket is not None
        machine.ended(ticket, 1.0, verdict)
    assert machine.opened_until == 6.0
    assert where(machine) == "open"


@given(st.lists(st.tuples(st.floats(0.0, 3.0), st.booleans(), st.booleans()), max_size=60))
def test_the_window_counts_what_a_list_of_all_calls_would(
    calls: list[tuple[float, bool, bool]],
) -> None:
    window, naive, now = CallWindow(10.0), deque[tuple[int, bool, bool]](), 0.0
    for wait, failed, slow in calls:
        now += wait
        window.add(now, failed=failed, slow=slow)
        naive.append((int(now // 1.0), failed, slow))
        last = [entry for entry in naive if entry[0] > int(now // 1.0) - SLICES]
        assert (window.calls, window.failures, window.slow) == (
            len(last),
            sum(e[1] for e in last),
            sum(e[2] for e in last),
        )


@given(
    st.lists(
        st.tuples(
            st.sampled_from([0.0, 1.0, 5.0, 30.0]),
            st.sampled_from(["admit", OK, FAIL, NEUTRAL, "cancel"]),
        ),
        max_size=80,
    )
)
def test_never_more_than_one_probe_and_never_stuck(steps: list[tuple[float, Any]]) -> None:
    """For any order of calls, results and cancellations; once all have ended, calls are eventually
    admitted again.
    """
    machine, now, out = circuit(consecutive=2, slow_after=4.0, slow_rate=0.5), 0.0, []
    for wait, step in steps:
        now += wait
        if step == "admit":
            ticket = machine.admit(now)
            assert ticket is not None or where(machine) != "closed"
            if ticket is not None:
                out.append(ticket)
        elif out:
            ticket = out.pop(0)
            machine.cancelled(ticket, now) if step == "cancel" else machine.ended(ticket, now, step)
        if where(machine) == "half_open":
            assert sum(t.is_probe and t.era == machine._era for t in out) <= 1
        if where(machine) == "open":
            assert machine.opened_until <= now + 60.0
    for ticket in out:
        machine.cancelled(ticket, now)
    assert machine.admit(now + 61.0) is not None
