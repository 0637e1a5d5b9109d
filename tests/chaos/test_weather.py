"""Outages, refusals, throttles, kills and standbys, and a shutdown at a random moment."""

from __future__ import annotations

import pytest
from tests.chaos.weather import Weather
from tests.seeds import run_by

SAMPLE = 30
SOAK = 1_000


def storms(seeds: range) -> None:
    """Run each; an error says how to repeat the run."""
    for seed in seeds:
        with run_by(f"from tests.chaos.weather import Weather; Weather({seed}).run()"):
            Weather(seed).run()


@pytest.mark.long
def test_no_good_item_is_given_up_in_any_weather() -> None:
    """batcher/4b.1 to 4b.3, B-T42: delivered, unsent and unknown items agree with the database's
    own log.
    """
    storms(range(SAMPLE))


@pytest.mark.soak
@pytest.mark.timeout(0)
@pytest.mark.parametrize("first", range(0, SOAK, 250))
def test_a_thousand_storms(first: int) -> None:
    """As above."""
    storms(range(first, first + 250))
