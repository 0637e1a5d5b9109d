"""Killed processes, speculation and dynamic allocation on a standalone cluster: every row compared.

The executors' Python has no Sluicegate: it comes by `--py-files`.
"""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark")

from tests.spark.levels.conftest import INVERSIONS
from tests.spark.sql import query

from .jobs import ROWS

if TYPE_CHECKING:
    from sluicegate.testing import EmbeddedPostgres

    from .conftest import Cluster, Submitted

pytestmark = [pytest.mark.long, pytest.mark.timeout(2000)]

LEVELS = ("at_least_once", "bucket", "atomic", "overwrite")
EXPECTED = [(number, number * 7919 % 97) for number in range(ROWS)]
SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.quantile": "0.25",
    "spark.speculation.minTaskRuntime": "100ms",
}
ALLOCATION = {
    "spark.dynamicAllocation.enabled": "true",
    "spark.dynamicAllocation.shuffleTracking.enabled": "true",
    "spark.dynamicAllocation.shuffleTracking.timeout": "1s",
    "spark.dynamicAllocation.executorIdleTimeout": "1s",
    "spark.dynamicAllocation.minExecutors": "0",
    "spark.dynamicAllocation.maxExecutors": "2",
}


class Mishap:
    """The tables and notes of one mishap at every level."""

    def __init__(
        self, cluster: Cluster, server: EmbeddedPostgres, shipped: Path, bare: str, folder: Path
    ) -> None:
        self.cluster = cluster
        self.dsn = server.dsn
        self.shipped = shipped
        self.bare = bare
        self.folder = folder

    def prepare(self, mishap: str) -> None:
        """Make the tables and notes. `overwrite` replaces an old row."""
        query(self.dsn, "DROP TABLE IF EXISTS sluicegate_ledger CASCADE")
        for level in LEVELS:
            name = f"{mishap}_{level}"
            query(
                self.dsn,
                f"DROP TABLE IF EXISTS {name};"
                f"CREATE TABLE {name} (id bigint, key bigint, serial bigserial);",
            )
            if level == "at_least_once":
                query(self.dsn, f"CREATE UNIQUE INDEX ON {name} (id)")
            if level == "overwrite":
                query(self.dsn, f"INSERT INTO {name} VALUES (-1, -1)")
            (self.folder / level).touch()
            os.mkfifo(self.folder / f"{level}.another")

    def submit(self, mishap: str, settings: dict[str, str] | None = None) -> Submitted:
        """Run the program once."""
        conf = [part for each in (settings or {}).items() for part in ("--conf", "=".join(each))]
        code = ("--py-files", str(self.shipped / "sluicegate.zip"))
        job = str(Path(__file__).with_name("jobs.py"))
        return self.cluster.submit(
            *(*conf, *code, job, self.dsn, str(self.folder), mishap, *LEVELS),
            folder=self.folder,
            executors=self.bare,
        )

    def check(self, mishap: str, ended: Submitted) -> None:
        """Compare every table, and the counts of the last run."""
        assert ended.code == 0, ended.log[-5000:]
        counts = [json.loads(line) for line in ended.out.splitlines()]
        assert counts == [[level, ROWS, ROWS] for level in LEVELS]
        for level in LEVELS:
            assert mishap == "idle" or not (self.folder / level).exists(), "nothing happened"
            name = f"{mishap}_{level}"
            assert query(self.dsn, f"SELECT id, key FROM {name} ORDER BY id") == EXPECTED, level
            if level != "at_least_once":  # an upsert keeps the serial of the first write
                assert query(self.dsn, INVERSIONS.replace("events", name)) == [(0,)], level


@pytest.fixture
def mishaps(
    cluster: Cluster,
    embedded_postgres: EmbeddedPostgres,
    shipped: Path,
    bare: str,
    tmp_path: Path,
) -> Mishap:
    return Mishap(cluster, embedded_postgres, shipped, bare, tmp_path)


@pytest.mark.parametrize("victim", ["worker", "executor"])
def test_a_process_killed_in_the_middle_of_a_chunk(mishaps: Mishap, victim: str) -> None:
    mishaps.prepare(victim)
    mishaps.check(victim, mishaps.submit(victim))


def test_a_driver_killed_at_every_level_and_started_again(mishaps: Mishap) -> None:
    """Each run repeats the finished levels under their names, and dies in the next one."""
    mishaps.prepare("driver")
    for ended in LEVELS:
        killed = mishaps.submit("driver")
        assert killed.code == -signal.SIGKILL, (ended, killed.log[-5000:])
    mishaps.check("driver", mishaps.submit("driver"))


def test_two_attempts_of_a_task_at_once(mishaps: Mishap) -> None:
    """Speculation runs a copy of the slow task, and kills the loser."""
    mishaps.prepare("slow")
    ended = mishaps.submit("slow", SPECULATION)
    mishaps.check("slow", ended)
    assert ended.log.count(" as speculatable ") >= len(LEVELS)


def test_executors_that_come_and_go(mishaps: Mishap) -> None:
    """Dynamic allocation: each level is written by new executors."""
    mishaps.prepare("idle")
    ended = mishaps.submit("idle", ALLOCATION)
    mishaps.check("idle", ended)
    assert ended.log.count("Registered executor ") >= len(LEVELS)
