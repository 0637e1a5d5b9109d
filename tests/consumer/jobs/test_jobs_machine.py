"""Events that are completed later, checked against the calls of their functions, with actions in
any order.
"""

from __future__ import annotations

import gc
import logging
import re
from typing import TYPE_CHECKING

import hypothesis
import pytest
from hypothesis import Phase, settings
from hypothesis.stateful import run_state_machine_as_test
from jobs import jobs_mutants
from jobs.jobs_machine import JobsMachine, narrowed
from tests.machine.test_machine import FAST, FOR_EVER
from tests.properties import how_many
from tests.seeds import run_by

if TYPE_CHECKING:
    from collections.abc import Iterator

SEEDS = 20
RUNS = 200
"""The number of runs per seed."""
TRIES = 20
"""The number of seeds tried for a planted bug."""
QUICK = {
    "the_last_job_is_finalised_first",
    "one_of_two_holds_is_enough",
    "a_key_is_free_before_its_processor_ends",
    "a_batch_does_not_keep_its_keys",
    "a_scheduler_without_a_run_says_complete",
    "an_interjection_takes_the_lane_of_a_running_handler",
    "a_failed_finaliser_repeats_its_job",
    "an_incomplete_event_is_acknowledged",
}
"""The planted bugs checked in every run of the suite; the others take longer."""


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Suppress the log lines of thousands of intended failures."""
    logger = logging.getLogger("sluicegate")
    level = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    yield
    logger.setLevel(level)


def explore(seed: int) -> None:
    """This many runs from a seed."""
    machine = hypothesis.seed(seed)(type("JobsMachine", (JobsMachine,), {}))
    with run_by(f"from tests.consumer.jobs.test_jobs_machine import explore; explore({seed})"):
        run_state_machine_as_test(
            machine,
            settings=settings(FAST, max_examples=RUNS, stateful_step_count=60, derandomize=False),
        )


@pytest.mark.hypothesis
@pytest.mark.filterwarnings(FOR_EVER)
def test_every_event_is_complete_once_and_in_order() -> None:
    """G-T1, G-T2, G-T3, G-T5, G-T8, G-T12, G-T15, G-T16, G-T18, consumer/C:N3, consumer/C:Ba6,
    consumer/C:Ba7: the laws hold after every step; at the end everything is complete and the
    consumer is empty.
    """
    run_state_machine_as_test(
        JobsMachine, settings=settings(FAST, max_examples=how_many(8, long=100))
    )


@pytest.mark.soak
@pytest.mark.timeout(0)
@pytest.mark.filterwarnings(FOR_EVER)
@pytest.mark.parametrize("seed", range(SEEDS))
def test_they_are_over_many_runs(seed: int) -> None:
    """As above."""
    explore(seed)


def complaint(machine: type[JobsMachine], seed: int) -> str:
    """The error of the runs from a seed; empty if they succeed."""
    once = settings(
        FAST,
        max_examples=150,
        derandomize=False,
        phases=[Phase.generate],
        report_multiple_bugs=False,
    )
    try:
        run_state_machine_as_test(hypothesis.seed(seed)(machine), settings=once)
    except Exception as error:  # a planted bug may raise any exception
        return str(error)
    finally:
        gc.collect()  # collect tasks abandoned by the bug before they reach another test
    return ""


@pytest.mark.filterwarnings(FOR_EVER)
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.long if name in QUICK else pytest.mark.soak)
        for name in jobs_mutants.ALL
    ],
)
def test_a_planted_bug_of_jobs_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """G-T1, G-T2, G-T3, G-T8, G-T14, G-T16, consumer/C:N3: the law that it breaks detects each
    within a few seeds; some runs end earlier at a consequence that no law covers.
    """
    planted = jobs_mutants.ALL[name]
    planted.plant(monkeypatch)
    told = []
    for seed in range(TRIES):
        told.append(complaint(narrowed(**planted.where), seed))
        if re.match(planted.law, told[-1]):
            return
    pytest.fail(f"no complaint of the law, but {[each.partition(chr(10))[0] for each in told]}")
