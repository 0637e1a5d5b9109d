"""Pipes of two members in random schedules: rebalances, cuts, refusals, outages, crashes, blocked
keys. The laws stand in `pipe_truth.py`.
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
"""What comes to pass in a sample, besides the events."""
AGAIN = 'import sys; sys.path.append("tests/flow"); from pipe_schedules import replay; replay({})'
TRIES = 20
"""Seeds from which a planted bug is looked for."""


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Failures by the thousand are not worth a log line each."""
    logger = logging.getLogger("penstock")
    level = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    yield
    logger.setLevel(level)


def schedules(seeds: range) -> Counter[str]:
    """Run each, and tell what came to pass; an error says how to run it again."""
    seen: Counter[str] = Counter()
    for seed in seeds:
        with run_by(AGAIN.format(seed)):
            seen += PipeSchedule(seed).run().seen
    return seen


def test_pipes_keep_order_and_positions_in_random_schedules() -> None:
    """consumer/C:C5, consumer/C:R1, consumer/C:R2, consumer/C:R4, consumer/C:N12: on memory, by the
    record of the destination and of the log.
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
    """How the run from a seed failed; empty without a failure."""
    try:
        PipeSchedule(seed, **planted.where).run()
    except LawBroken as error:
        return str(error)
    except Exception as error:  # a planted bug may raise whatever it likes
        return repr(error)
    finally:
        gc.collect()  # tasks that the bug has left for ever, before another test hears of them
    return ""


@pytest.mark.long
@pytest.mark.parametrize("name", pipe_mutants.ALL)
def test_a_planted_bug_of_a_pipe_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the law that it breaks, from one seed of a few."""
    planted = pipe_mutants.ALL[name]
    planted.plant(monkeypatch)
    told: list[str] = []
    for seed in range(TRIES):
        told.append(complaint(planted, seed))
        if told[-1].startswith(planted.law):
            return
    pytest.fail(f"no complaint of the law, but {told}")
