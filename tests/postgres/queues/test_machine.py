"""A queue with random operations: order, a single holder, fencing, and an end for every job."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test
from tests.postgres.queues.queue_machine import QueueMachine, Setting

if TYPE_CHECKING:
    from tests.postgres.streams.log_help import Log


def run(log: Log, *, examples: int, sticky: bool = False) -> None:
    with Setting(log) as setting:

        def machine() -> QueueMachine:
            return QueueMachine(setting, sticky=sticky)

        run_state_machine_as_test(
            machine,  # type: ignore[arg-type]  # it takes what makes one, too
            settings=settings(
                max_examples=examples,
                stateful_step_count=30,
                deadline=None,
                suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
            ),
        )


@pytest.mark.parametrize("examples", [20, pytest.param(100, marks=pytest.mark.long)])
@pytest.mark.parametrize("sticky", [False, True])
def test_any_schedule_keeps_order_and_holders_and_loses_nothing(
    log: Log, sticky: bool, examples: int
) -> None:
    """Q-T1 to Q-T5, Q-T11 to Q-T13."""
    run(log, examples=examples, sticky=sticky)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("sticky", [False, True])
def test_many_schedules(log: Log, sticky: bool) -> None:
    run(log, examples=2000, sticky=sticky)
