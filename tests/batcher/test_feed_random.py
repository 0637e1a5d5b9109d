"""Random runs, and planted bugs that they detect.

White box: the bugs are planted in methods of private classes.
"""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Any

import pytest
from feed_machine import run

from sluicegate import Outcome
from sluicegate._core.delivery.delivery import Delivery
from sluicegate.batcher.books import Bookkeeper
from sluicegate.testing import FakeClock

if TYPE_CHECKING:
    from collections.abc import Callable

SEEDS = range(60)


def run_seed(seed: int) -> None:
    with FakeClock() as clock:
        clock.run(run(clock, Random(seed)))


@pytest.mark.parametrize("seed", SEEDS)
def test_nothing_withdrawn_is_sent_and_every_key_stays_in_order(seed: int) -> None:
    run_seed(seed)


def without_mark(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Delivery, "withdraw", lambda *_: None)


def unknown_frees_its_key(patch: pytest.MonkeyPatch) -> None:
    plain = Bookkeeper.stopping

    def stopping(self: Any, flight: Any, indices: Any, outcome: Outcome) -> Any:
        return () if outcome is Outcome.UNKNOWN else plain(self, flight, indices, outcome)

    patch.setattr(Bookkeeper, "stopping", stopping)


@pytest.mark.parametrize("plant", [without_mark, unknown_frees_its_key])
def test_a_planted_bug_is_found(
    plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    failed = 0
    for seed in SEEDS:
        try:
            run_seed(seed)
        except AssertionError:
            failed += 1
            break
    assert failed
