"""The batcher against its model, under rules in any order."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test
from tests.machine.machine import BatcherMachine

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Failures by the thousand are the point here, and not worth a log line each."""
    logger = logging.getLogger("penstock")
    level = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    yield
    logger.setLevel(level)


def test_every_item_is_accounted_for_whatever_happens() -> None:
    """batcher/4b.1, batcher/4b.2, B-T7: the law holds after every step, and the end is what the destination saw."""
    run_state_machine_as_test(BatcherMachine, settings=settings(max_examples=250, stateful_step_count=40, deadline=None))


@pytest.mark.soak
@pytest.mark.timeout(0)
def test_every_item_is_accounted_for_over_many_runs() -> None:
    """batcher/4b.1, batcher/4b.2, B-T7, B-T36: as above, for long."""
    run_state_machine_as_test(BatcherMachine, settings=settings(max_examples=20_000, stateful_step_count=80, deadline=None))
