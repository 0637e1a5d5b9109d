"""Public data sets through incremental pipelines, compared with DuckDB row by row, also when the
driver and its workers are killed.
"""

from __future__ import annotations

import random
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("duckdb")
from tests.seeds import run_by

from . import data_sets

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SUITE = (0, 1)
SEEDS = [
    *SUITE,
    *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(17) if seed not in SUITE),
]
"""Three kills each: 50 in all."""


@pytest.fixture
def dsn(embedded_postgres: Any) -> Iterator[str]:
    found = str(embedded_postgres.dsn)
    data_sets.create(found)
    yield found
    data_sets.drop(found)


def test_inserts_changes_and_deletes_arrive(spark: Any, dsn: str, tmp_path: Path) -> None:
    for number in range(data_sets.ROUNDS):
        data_sets.put(tmp_path, number)
        data_sets.run(spark, tmp_path, dsn)
        data_sets.check(tmp_path, dsn)


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", SEEDS)
def test_a_killed_run_neither_skips_nor_repeats_rows(dsn: str, tmp_path: Path, seed: int) -> None:
    """The next run is another process, and finds more files."""
    dice = random.Random(seed)
    with run_by(f"pytest -m '' tests/spark/pipeline/test_data_sets.py -k '{seed}'"):
        for number in range(data_sets.ROUNDS):
            data_sets.put(tmp_path, number)
            victim = dice.choice(["driver", "driver", "worker"])
            _drive(tmp_path, dsn, victim, dice.uniform(0.5, 12))
        _drive(tmp_path, dsn, "nobody", 0)
        data_sets.check(tmp_path, dsn)


def _drive(folder: Path, dsn: str, victim: str, seconds: float) -> None:
    command = [sys.executable, "-m", data_sets.__name__, str(folder), dsn, victim, str(seconds)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    expected = 0 if victim == "nobody" else -9 if "killed\n" in done.stdout else 0
    assert done.returncode == expected, done.stderr[-3000:]
