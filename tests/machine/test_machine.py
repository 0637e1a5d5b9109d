"""The batcher compared with its model, with rules in any order."""

from __future__ import annotations

import gc

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test
from tests.machine import mutants
from tests.machine.machine import BatcherMachine
from tests.properties import how_many

SAMPLE = {
    "a_cancelled_add_is_dropped": "items got in|bytes inside",
    "an_item_is_doubled_on_cancel": "items got in",
    "a_late_completion_changes_the_report": "a late completion changed the tally|delivered, but",
    "a_timer_is_left_after_the_flights": "left behind: .*timer",
    "a_settled_item_is_sent_again": "were settled and are sent again",
    "a_waiter_is_overtaken_by_a_newcomer": "overtook",
    "a_wake_up_is_lost_at_a_full_ledger": "wait, and there is room",
    "a_slot_leaks_after_a_cut": "a worker is free, and",
    "a_dropped_item_counts_twice": "items got in",
}
"""The planted bugs tried in every run of the suite, and the expected complaints."""

FOR_EVER = "ignore::pytest.PytestUnraisableExceptionWarning"
"""A planted bug may leave tasks that cannot be cancelled."""

SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]
FAST = settings(
    max_examples=100,
    stateful_step_count=50,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=SLOW,
)
LONG = settings(
    max_examples=10_000, stateful_step_count=80, deadline=None, suppress_health_check=SLOW
)


@pytest.mark.hypothesis
def test_every_item_is_accounted_for_whatever_happens() -> None:
    """batcher/4b.1, batcher/4b.2, B-T7: the law holds after every step, and the final outcomes
    match the destination.
    """
    run_state_machine_as_test(
        BatcherMachine, settings=settings(FAST, max_examples=how_many(20, long=200))
    )


@pytest.mark.soak
@pytest.mark.timeout(0)
def test_every_item_is_accounted_for_over_many_runs() -> None:
    """batcher/4b.1, batcher/4b.2, B-T7, B-T36: the same with many runs, from a new seed each
    time.
    """
    run_state_machine_as_test(BatcherMachine, settings=LONG)


@pytest.mark.soak
@pytest.mark.timeout(0)
def test_asyncio_finds_nothing_to_complain_of() -> None:
    """B-T36: in its debug mode."""

    class Debugged(BatcherMachine):
        def __init__(self) -> None:
            super().__init__()
            self.clock.loop.set_debug(enabled=True)

    run_state_machine_as_test(Debugged, settings=settings(LONG, max_examples=1_000))


def find(name: str, monkeypatch: pytest.MonkeyPatch, budget: settings, complaint: str = "") -> None:
    """Check that the machine detects a planted bug with this complaint."""
    mutants.ALL[name](monkeypatch)
    once = settings(
        budget, derandomize=True, database=None, phases=[Phase.generate], report_multiple_bugs=False
    )
    with pytest.raises(AssertionError, match=complaint or None):
        run_state_machine_as_test(BatcherMachine, settings=once)
    gc.collect()  # collect tasks abandoned by the bug before they reach another test


@pytest.mark.long
@pytest.mark.filterwarnings(FOR_EVER)
@pytest.mark.parametrize("name", SAMPLE)
def test_a_planted_bug_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """batcher/4b.1: it is detected within some hundred runs."""
    find(name, monkeypatch, settings(FAST, max_examples=2_000), SAMPLE[name])


@pytest.mark.soak
@pytest.mark.timeout(0)
@pytest.mark.filterwarnings(FOR_EVER)
@pytest.mark.parametrize("name", mutants.ALL)
def test_every_planted_bug_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """batcher/4b.1."""
    find(name, monkeypatch, settings(LONG, stateful_step_count=60))
