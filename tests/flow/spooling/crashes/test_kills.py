"""Batchers with a spool in processes that are killed: see `kills`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

PROGRAM = Path(__file__).with_name("kills.py")


def killed(folder: Path, *how: object) -> Any:
    """Run the program; return its counts."""
    command = [sys.executable, str(PROGRAM), str(folder), *map(str, how)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert not done.returncode, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize(
    ("kills", "seed", "durability"),
    [
        (50, 0, "commit"),
        (10, 1, "os"),
        pytest.param(1000, 2, "commit", marks=[pytest.mark.long, pytest.mark.timeout(3600)]),
    ],
)
def test_a_stored_item_outlives_kills_at_random_moments(
    tmp_path: Path, kills: int, seed: int, durability: str
) -> None:
    """Every item whose `add` or `deliver` had returned is at the destination, in order per key."""
    counts = killed(tmp_path / "spool", "random", kills, seed, durability)
    assert counts["reported"] > kills
    assert counts["repeats"] or kills < 50  # ten may all miss the writes


@pytest.mark.parametrize("moment", ["write", "answer"])
@pytest.mark.parametrize(
    ("nths", "repeats"), [([4], 4), ([9, 2], 5), ([12, 1, 2, 1], 7)], ids=["once", "twice", "often"]
)
def test_an_interrupted_batch_is_written_first_and_as_it_was(
    tmp_path: Path, moment: str, nths: list[int], repeats: int
) -> None:
    """The same items under the same `write_key`: a destination that knows it has each item once."""
    assert killed(tmp_path / "spool", moment, *nths) == {"repeats": repeats}
