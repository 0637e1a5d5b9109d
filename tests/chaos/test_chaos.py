"""Full stacks with faulty destinations, seeded, on virtual time."""

from __future__ import annotations

import pytest
from tests.chaos.run import Chaos
from tests.seeds import run_by

SAMPLE = 60
LANES = 25
SOAK = 1_000


def storms(seeds: range, *, patient: bool, lanes: bool = False) -> None:
    """Run each; an error says how to repeat the run."""
    for seed in seeds:
        with run_by(
            f"from tests.chaos.run import Chaos; Chaos({seed}, patient={patient}, "
            f"lanes={lanes}).run()"
        ):
            Chaos(seed, patient=patient, lanes=lanes).run()


@pytest.mark.parametrize("first", range(0, SAMPLE, 20))
def test_after_the_storm_good_items_are_there_and_bad_ones_are_the_dead_letters(first: int) -> None:
    """batcher/4b.1, B-T19, B-T41: however often the destination failed, throttled, hung or applied
    only a part; nothing else is stored.
    """
    storms(range(first, first + 20), patient=True)


@pytest.mark.long
@pytest.mark.parametrize("first", range(0, SAMPLE, 20))
def test_a_shutdown_in_the_storm_accounts_for_every_item(first: int) -> None:
    """batcher/4b.1, batcher/4b.2, B-T57: delivered means applied, unsent means not applied, and
    only bad items are rejected or dead-lettered.
    """
    storms(range(first, first + 20), patient=False)


@pytest.mark.parametrize("patient", [True, False])
def test_keys_tenants_and_adaptive_control_keep_their_laws_in_the_storm(patient: bool) -> None:
    """I4, I5, batcher/4a.9, batcher/4a.10, B-T28, G-T8: all other laws hold, too."""
    storms(range(LANES), patient=patient, lanes=True)


@pytest.mark.soak
@pytest.mark.timeout(0)
@pytest.mark.parametrize("lanes", [False, True])
@pytest.mark.parametrize("patient", [True, False])
def test_a_thousand_storms(patient: bool, lanes: bool) -> None:
    """batcher/4b.1, B-T57: as above."""
    storms(range(SOAK), patient=patient, lanes=lanes)
