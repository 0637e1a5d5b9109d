"""Under all faults of a group's members, every record is handled, and every position is correct."""

from __future__ import annotations

import logging

import pytest
from tests.conformance.random_members import PARTITIONS, RandomMembers

from sluicegate.testing import FakeClock


def run(seed: int) -> None:
    with FakeClock() as clock:
        members = RandomMembers(seed, clock)
        clock.run(members.run(steps=40))
        assert members.violations == [], f"seed {seed}"
        produced = {(tp.partition, r.offset) for tp in PARTITIONS for r in members.log.records[tp]}
        assert produced <= members.settled.settled, f"seed {seed}"


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, logger="sluicegate.consumer")


@pytest.mark.parametrize("seed", range(8))
def test_no_record_is_lost_and_no_position_lies(seed: int) -> None:
    """I7, I8, O-T1, O-T7, O-T8, O-T23, consumer/C:C1, consumer/C:C3: with rebalances, losses and
    crashes.
    """
    run(seed)


@pytest.mark.soak
@pytest.mark.parametrize("start", range(8, 1008, 100))
def test_no_record_is_lost_in_a_thousand_programs(start: int) -> None:
    """As above."""
    for seed in range(start, start + 100):
        run(seed)
