"""White box: seeded days of a batcher that spills keep every item and its order; planted bugs are
found.
"""

from __future__ import annotations

import logging
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from spooling.spill.simulation import Simulation
from tests.seeds import run_by

from sluicegate import Outcome
from sluicegate.flow.spooling.folder import SpoolFolder
from sluicegate.flow.spooling.spilling import SpillSink

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SAMPLE, LONG = 25, 600
TRIES = 20
"""The number of seeds tried for a planted bug."""
AGAIN = (
    'import sys; sys.path.append("tests/flow"); from pathlib import Path; '
    "from spooling.spill.simulation import Simulation; "
    'Simulation({}, Path("/tmp/day")).run()'
)


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Suppress the log lines of thousands of failures."""
    logger = logging.getLogger("sluicegate")
    level = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    yield
    logger.setLevel(level)


@pytest.mark.parametrize(
    "seeds",
    [
        range(SAMPLE),
        pytest.param(range(SAMPLE, LONG), marks=[pytest.mark.long, pytest.mark.timeout(3600)]),
    ],
    ids=len,
)
def test_nothing_is_lost_repeated_or_overtaken(seeds: range, tmp_path: Path) -> None:
    seen: Counter[str] = Counter()
    for seed in seeds:
        with run_by(AGAIN.format(seed)):
            seen += Simulation(seed, tmp_path).run()
    assert {"DELIVERED", "SPOOLED", "REJECTED", "left", "cut"} <= seen.keys()


async def settle_all(self: SpillSink, writing: Any, errors: Any) -> Any:
    """Forget a batch that was stopped."""
    await self._running.settle(sorted(writing.copies.values()))
    writing.batch.settle([*writing.copies.keys() & errors], Outcome.SPOOLED)
    return {at: error for at, error in errors.items() if at not in writing.copies}


async def settle_nothing(self: SpillSink, writing: Any, errors: Any) -> Any:
    """Forget the copies of a batch that was written."""
    return errors


async def copy_nothing(self: SpillSink) -> bool:
    """Store a batch before the earlier one that is being written."""
    return True


@pytest.mark.parametrize(
    ("owner", "name", "bug", "law"),
    [
        (SpillSink, "_may_write", lambda sink: len(sink._writes) == 0, "order|too many writes"),
        (SpoolFolder, "holds_back", False, "order|twice|too many writes"),
        (SpillSink, "_settle_copies", settle_all, "lost"),
        (SpillSink, "_settle_copies", settle_nothing, "twice|applied|INCOMPLETE"),
        (SpillSink, "_copied", copy_nothing, "order"),
    ],
    ids=["writes past the spool", "sends past a write", "forgets", "repeats", "copies nothing"],
)
def test_a_planted_bug_is_found(
    owner: type, name: str, bug: Any, law: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owner, name, bug)
    with pytest.raises(AssertionError, match=law):
        for seed in range(TRIES):
            Simulation(seed, tmp_path).run()
