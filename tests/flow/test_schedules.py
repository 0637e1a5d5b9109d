"""Pipes of two members in random schedules: rebalances, cuts, refusals, outages, crashes, blocked
keys. `pipe_truth.py` contains the laws.
"""

from __future__ import annotations

import gc
import logging
from collections import Counter
from typing import TYPE_CHECKING

import pipe_mutants
import pytest
from pipe_schedules import EVENTS, LawBroken, PipeSchedule
from tests.seeds import run_by

if TYPE_CHECKING:
    from collections.abc import Iterator

SAMPLE = 50
SOAK = 1_000
REACHED = (
    "applied again",
    "applied after the end of its claim",
    "unknown",
    "cut",
    "refused rows",
    "given up",
    "parked",
)
"""Situations that must occur in a sample, besides the events."""
AGAIN = 'import sys; sys.path.append("tests/flow"); from pipe_schedules import replay; replay({})'
TRIES = 20
"""The number of seeds tried for a planted bug."""


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Suppress the log lines of thousands of failures."""
    logger = logging.getLogger("sluicegate")
    level = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    yield
    logger.setLevel(level)


def schedules(seeds: range) -> Counter[str]:
    """Run each seed and count the situations; an error says how to replay it."""
    seen: Counter[str] = Counter()
    for seed in seeds:
        with run_by(AGAIN.format(seed)):
            seen += PipeSchedule(seed).run().seen
    return seen


@pytest.mark.long
def test_pipes_keep_order_and_positions_in_random_schedules() -> None:
    """consumer/C:C5, consumer/C:R1, consumer/C:R2, consumer/C:R4, consumer/C:N12: in memory,
    checked by the records of the destination and of the log.
    """
    seen = schedules(range(SAMPLE))
    assert {*EVENTS, *REACHED} <= seen.keys()


@pytest.mark.soak
@pytest.mark.timeout(0)
@pytest.mark.parametrize("first", range(0, SOAK, 250))
def test_pipes_keep_order_and_positions_in_a_thousand_schedules(first: int) -> None:
    """As above."""
    schedules(range(first, first + 250))


def complaint(planted: pipe_mutants.Planted, seed: int) -> str:
    """The error of the run from a seed; empty if it succeeds."""
    try:
        PipeSchedule(seed, **planted.where).run()
    except LawBroken as error:
        return str(error)
    except Exception as error:  # a planted bug may raise any exception
        return repr(error)
    finally:
        gc.collect()  # collect tasks abandoned by the bug before they reach another test
    return ""


@pytest.mark.long
@pytest.mark.parametrize("name", pipe_mutants.ALL)
def test_a_planted_bug_of_a_pipe_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The law that it breaks detects it within a few seeds."""
    planted = pipe_mutants.ALL[name]
    planted.plant(monkeypatch)
    told: list[str] = []
    for seed in range(TRIES):
        told.append(complaint(planted, seed))
        if told[-1].startswith(planted.law):
            return
    pytest.fail(f"no complaint of the law, but {told}")
