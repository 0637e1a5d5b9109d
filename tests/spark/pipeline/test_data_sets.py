"""Public data sets through incremental pipelines, compared with DuckDB row by row, also when the
driver and its workers are killed.
"""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("duckdb")

from tests.seeds import run_by

from . import data_sets

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def dsn(embedded_postgres: Any) -> Iterator[str]:
    found = str(embedded_postgres.dsn)
    data_sets.create(found)
    yield found
    data_sets.drop(found)


@pytest.mark.parametrize("flights", [data_sets.FLIGHTS, pytest.param(None, marks=pytest.mark.long)])
def test_inserts_changes_and_deletes_arrive(
    spark: Any, dsn: str, tmp_path: Path, flights: int | None
) -> None:
    """With all 336,776 flights, too."""
    for number in range(data_sets.ROUNDS):
        data_sets.put(tmp_path, number, flights=flights)
        data_sets.run(spark, tmp_path, dsn)
        data_sets.check(tmp_path, dsn)


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    "seed",
    [
        pytest.param(0, marks=pytest.mark.long),
        *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(1, 5)),
    ],
)
def test_killed_runs_neither_skip_nor_repeat_rows(dsn: str, tmp_path: Path, seed: int) -> None:
    """Four drivers one after the other, each of which finds another round of files; then six
    executors, or workers of executors, of one driver. 50 kills in all.
    """
    dice, killed = random.Random(seed), Counter[str]()
    with run_by(f"pytest -m '' tests/spark/pipeline/test_data_sets.py -k 'killed and {seed}'"):
        while killed["driver"] < 4:
            killed.update(
                _drive(tmp_path, dsn, "local[2,4]", f"driver={dice.uniform(0.5, 12):.2f}")
            )
        while killed.total() < 10:
            victims = dice.choices(["executor", "worker"], k=10 - killed.total())
            kills = [f"{victim}={dice.uniform(0.2, 8):.2f}" for victim in victims]
            killed.update(_drive(tmp_path, dsn, "local-cluster[2,1,1024]", *kills))
    sys.stdout.write(f"killed: {dict(killed)}; {data_sets.check(tmp_path, dsn)} rows are equal\n")


def _drive(folder: Path, dsn: str, master: str, *kills: str) -> list[str]:
    """Run the pipelines in another process; return what was killed."""
    command = [sys.executable, "-m", data_sets.__name__, str(folder), dsn, master, *kills]
    path = {"PYTHONPATH": os.pathsep.join(sys.path)}  # executors have other working folders
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env=os.environ | path
    )
    sys.stdout.write(done.stdout)
    killed = re.findall(r"killed (\w+)\n", done.stdout)
    assert done.returncode == (-signal.SIGKILL if "driver" in killed else 0), done.stderr[-3000:]
    return killed
