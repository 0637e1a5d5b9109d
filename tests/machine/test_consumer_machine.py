"""Consumers compared with the calls of their handlers, with rules in any order."""

from __future__ import annotations

import gc
import re

import hypothesis
import pytest
from hypothesis import Phase, settings
from hypothesis.stateful import run_state_machine_as_test
from tests.machine import consumer_mutants
from tests.machine.consumer_machine import ConsumerMachine, narrowed
from tests.machine.test_machine import FAST, FOR_EVER
from tests.properties import how_many
from tests.seeds import run_by

SEEDS = 20
RUNS = 100
"""The number of runs per seed."""
TRIES = 20
"""The number of seeds tried for a planted bug."""


def explore(seed: int) -> None:
    """This many runs from a seed."""
    machine = hypothesis.seed(seed)(type("ConsumerMachine", (ConsumerMachine,), {}))
    with run_by(f"from tests.machine.test_consumer_machine import explore; explore({seed})"):
        run_state_machine_as_test(
            machine,
            settings=settings(FAST, max_examples=RUNS, stateful_step_count=60, derandomize=False),
        )


@pytest.mark.hypothesis
@pytest.mark.filterwarnings(FOR_EVER)
def test_no_record_is_lost_and_every_key_stays_in_order() -> None:
    """O-T1, G-T8, consumer/C:O1, consumer/C:C1, consumer/C:C3, consumer/C:C5, consumer/C:R1,
    consumer/C:R2, consumer/C:N3, consumer/C:N8: the laws hold after every step, and at the end
    every record is settled.
    """
    run_state_machine_as_test(
        ConsumerMachine, settings=settings(FAST, max_examples=how_many(10, long=100))
    )


@pytest.mark.soak
@pytest.mark.timeout(0)
@pytest.mark.filterwarnings(FOR_EVER)
@pytest.mark.parametrize("seed", range(SEEDS))
def test_they_keep_the_laws_over_many_runs(seed: int) -> None:
    """As above."""
    explore(seed)


def complaint(machine: type[ConsumerMachine], seed: int) -> str:
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


def find(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that the law broken by a planted bug detects it within a few seeds; some runs end
    earlier at a consequence that no law covers.
    """
    planted = consumer_mutants.ALL[name]
    planted.plant(monkeypatch)
    told = []
    for seed in range(TRIES):
        told.append(complaint(narrowed(**planted.where), seed))
        if re.match(planted.law, told[-1]):
            return
    pytest.fail(f"no complaint of the law, but {[each.partition(chr(10))[0] for each in told]}")


@pytest.mark.long
@pytest.mark.filterwarnings(FOR_EVER)
@pytest.mark.parametrize("name", consumer_mutants.ALL)
def test_a_planted_bug_of_the_consumer_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """consumer/C:C1, consumer/C:C2, consumer/C:C4, consumer/C:O1: each by the law that it
    breaks.
    """
    find(name, monkeypatch)
