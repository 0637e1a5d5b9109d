"""Consumers against the ground truth of their handlers, under rules in any order."""

from __future__ import annotations

import gc
import logging

import hypothesis
import pytest
from hypothesis import Phase, settings
from hypothesis.stateful import run_state_machine_as_test
from tests.machine import consumer_mutants
from tests.machine.consumer_machine import ConsumerMachine, narrowed
from tests.machine.test_machine import FAST, FOR_EVER
from tests.seeds import run_by

SLOWER = {
    "a_failed_message_gives_its_key_up",
    "queued_messages_outlive_their_claim",
    "the_map_is_not_read",
    "the_window_is_not_asked",
}
"""The planted bugs that are looked for in the soak only."""
SEEDS = 20
RUNS = 100
"""From each seed."""


@pytest.fixture(autouse=True)
def quiet() -> None:
    """Failed tries are part of the script."""
    logging.getLogger("penstock").setLevel(logging.CRITICAL)


def explore(seed: int) -> None:
    """So many runs from a seed."""
    machine = hypothesis.seed(seed)(type("ConsumerMachine", (ConsumerMachine,), {}))
    with run_by(f"from tests.machine.test_consumer_machine import explore; explore({seed})"):
        run_state_machine_as_test(
            machine,
            settings=settings(FAST, max_examples=RUNS, stateful_step_count=60, derandomize=False),
        )


@pytest.mark.filterwarnings(FOR_EVER)
def test_no_record_is_lost_and_every_key_stays_in_order() -> None:
    """O-T1, G-T8, consumer/C:O1, consumer/C:C1, consumer/C:C3, consumer/C:C5, consumer/C:R1,
    consumer/C:R2, consumer/C:N3, consumer/C:N8: the laws hold after every step, and in the end
    every record is settled.
    """
    run_state_machine_as_test(ConsumerMachine, settings=settings(FAST, max_examples=40))


@pytest.mark.soak
@pytest.mark.timeout(0)
@pytest.mark.filterwarnings(FOR_EVER)
@pytest.mark.parametrize("seed", range(SEEDS))
def test_they_keep_the_laws_over_many_runs(seed: int) -> None:
    """As above."""
    explore(seed)


def find(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine fails once the bug is planted, and the law says so that the bug breaks."""
    planted = consumer_mutants.ALL[name]
    planted.plant(monkeypatch)
    once = settings(FAST, max_examples=150, phases=[Phase.generate], report_multiple_bugs=False)
    with pytest.raises(AssertionError, match=rf"^(\['|)({planted.law})"):
        run_state_machine_as_test(narrowed(**planted.where), settings=once)
    gc.collect()  # tasks that the bug has left for ever, before another test hears of them


@pytest.mark.filterwarnings(FOR_EVER)
@pytest.mark.parametrize("name", sorted(consumer_mutants.ALL.keys() - SLOWER))
def test_a_planted_bug_of_the_consumer_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """consumer/C:C1, consumer/C:C2, consumer/C:C4, consumer/C:O1: each by the law it breaks."""
    find(name, monkeypatch)


@pytest.mark.soak
@pytest.mark.timeout(0)
@pytest.mark.filterwarnings(FOR_EVER)
@pytest.mark.parametrize("name", sorted(SLOWER))
def test_another_planted_bug_of_the_consumer_is_found(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """consumer/C:C1, consumer/C:O1."""
    find(name, monkeypatch)
