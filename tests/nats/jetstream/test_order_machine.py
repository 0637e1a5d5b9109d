"""Members of one consumer, on a model of its server, with rules in any order.

Proven here: consumer/C:C7, consumer/C:N2, consumer/C:N9.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import hypothesis
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test
from tests.nats.jetstream import order_mutants, order_programs
from tests.nats.jetstream.order_machine import OrderMachine, narrowed
from tests.seeds import run_by

if TYPE_CHECKING:
    from collections.abc import Callable

FAST = settings(
    max_examples=60,
    stateful_step_count=50,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
SEEDS = 20
RUNS = 1_000
"""The number of runs per seed."""
TRIES = 10
"""The number of seeds tried for a planted bug."""


def explore(seed: int) -> None:
    """This many runs from a seed."""
    machine = hypothesis.seed(seed)(narrowed())
    with run_by(f"from tests.nats.jetstream.test_order_machine import *; explore({seed})"):
        run_state_machine_as_test(
            machine, settings=settings(FAST, max_examples=RUNS, derandomize=False)
        )


def test_every_key_stays_in_order_and_every_message_is_settled_once() -> None:
    """consumer/C:C7, consumer/C:N2, consumer/C:N9: over naks, drains, crashes, frozen members, lost
    connections and server restarts.
    """
    run_state_machine_as_test(OrderMachine, settings=FAST)


@pytest.mark.soak
@pytest.mark.timeout(0)
@pytest.mark.parametrize("seed", range(SEEDS))
def test_the_laws_hold_over_many_runs(seed: int) -> None:
    """As above."""
    explore(seed)


@pytest.mark.parametrize("program", order_programs.ALL)
def test_the_laws_hold_where_random_rules_seldom_come(
    program: Callable[[OrderMachine], None],
) -> None:
    """consumer/C:C7, consumer/C:N2."""
    program(OrderMachine())


def complaint(machine: type[OrderMachine], seed: int) -> str:
    """The error of the runs from a seed; empty if they succeed."""
    once = settings(
        FAST,
        max_examples=100,
        derandomize=False,
        phases=[Phase.generate],
        report_multiple_bugs=False,
    )
    try:
        run_state_machine_as_test(hypothesis.seed(seed)(machine), settings=once)
    except Exception as error:  # a planted bug may raise any exception
        return str(error)
    return ""


@pytest.mark.long
@pytest.mark.parametrize("name", order_mutants.ALL)
def test_a_planted_bug_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """consumer/C:C7, consumer/C:N2: the law that it breaks detects it within a few seeds."""
    planted = order_mutants.ALL[name]
    planted.plant(monkeypatch)
    if planted.program is not None:
        with pytest.raises(AssertionError, match=f"^({planted.law})"):
            planted.program(OrderMachine())
        return
    told: list[str] = []
    for seed in range(TRIES):
        told.append(complaint(narrowed(**planted.where), seed))
        if re.match(planted.law, told[-1]):
            return
    pytest.fail(f"no complaint of the law, but {[each.partition(chr(10))[0] for each in told]}")
