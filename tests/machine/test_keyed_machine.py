"""Keys, tenants and adaptive control compared with their model, with rules in any order."""

from __future__ import annotations

import gc

import hypothesis
import pytest
from hypothesis import Phase, settings
from hypothesis.stateful import run_state_machine_as_test
from tests.machine import keyed_mutants
from tests.machine.keyed_machine import KeyedMachine, narrowed
from tests.machine.test_machine import FAST, FOR_EVER
from tests.properties import how_many
from tests.seeds import run_by

SLOWER = {"a_batch_is_cut_through_a_key"}
"""The planted bugs that are tried in the soak only."""
SEEDS = 20
RUNS = 100
"""The number of runs per seed."""


def explore(seed: int) -> None:
    """This many runs from a seed."""
    machine = hypothesis.seed(seed)(type("KeyedMachine", (KeyedMachine,), {}))
    with run_by(f"from tests.machine.test_keyed_machine import explore; explore({seed})"):
        run_state_machine_as_test(
            machine,
            settings=settings(FAST, max_examples=RUNS, stateful_step_count=60, derandomize=False),
        )


@pytest.mark.hypothesis
def test_keys_tenants_and_adaptive_control_keep_their_laws() -> None:
    """I1, I4, I5, I6, I9, batcher/4a.9, batcher/4a.10, batcher/4a.11, batcher/4b.6, B-T28, G-T8:
    after every step; nothing remains at the end.
    """
    run_state_machine_as_test(
        KeyedMachine, settings=settings(FAST, max_examples=how_many(15, long=100))
    )


@pytest.mark.soak
@pytest.mark.timeout(0)
@pytest.mark.parametrize("seed", range(SEEDS))
def test_they_keep_them_over_many_runs(seed: int) -> None:
    """As above."""
    explore(seed)


def find(name: str, monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    """Check that the law broken by a planted bug detects it."""
    planted = keyed_mutants.ALL[name]
    planted.plant(monkeypatch)
    once = settings(FAST, max_examples=most, phases=[Phase.generate], report_multiple_bugs=False)
    with pytest.raises(AssertionError, match=rf"^(\['|)({planted.law})"):
        run_state_machine_as_test(narrowed(**planted.where), settings=once)
    gc.collect()  # collect tasks abandoned by the bug before they reach another test


@pytest.mark.long
@pytest.mark.filterwarnings(FOR_EVER)
@pytest.mark.parametrize("name", sorted(keyed_mutants.ALL.keys() - SLOWER))
def test_a_planted_bug_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """I4, I5, I6, batcher/4a.10, batcher/4b.6."""
    find(name, monkeypatch, 200)


@pytest.mark.soak
@pytest.mark.timeout(0)
@pytest.mark.filterwarnings(FOR_EVER)
@pytest.mark.parametrize("name", sorted(SLOWER))
def test_a_planted_bug_that_takes_longer_is_found(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I4, I5, batcher/4a.10."""
    find(name, monkeypatch, 2_000)
