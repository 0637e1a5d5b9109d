"""Events that are completed later, against the ground truth of their functions, under rules in any order."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test
from jobs.jobs_machine import JobsMachine
from tests.machine.test_machine import FAST, FOR_EVER


@pytest.mark.filterwarnings(FOR_EVER)
def test_the_laws_of_jobs_hold() -> None:
    """G-T2, G-T3"""
    run_state_machine_as_test(JobsMachine, settings=settings(FAST, max_examples=40))
