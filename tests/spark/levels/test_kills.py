"""Kills at random moments, from seeds, at every delivery level: nothing is lost, and rows promised
once are not duplicated.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark")
from sluicegate.testing import embedded_postgres
from sluicegate.testing.servers.require import there_or_skip

from .alone import run

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sluicegate.testing import EmbeddedPostgres

SUITE = (0, 11, 25, 29, 30, 31)
"""Each level and each victim: during a write, before a commit, before a publication, after a
commit.
"""
KILLS = 180
DRIVERS = 20
SEEDS = [
    *SUITE,
    *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(KILLS) if seed not in SUITE),
]


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedPostgres]:
    """A durable server for this module, which tests kill."""
    with there_or_skip("postgres", embedded_postgres()) as server:
        yield server


@pytest.mark.long
@pytest.mark.parametrize("seed", SEEDS)
def test_a_worker_or_the_server_killed_at_some_moment_changes_no_row(
    spark: Any, server: EmbeddedPostgres, seed: int
) -> None:
    """P-T4, P-T8, P-T9, P-T14, P-T16: a Spark worker, one backend, or the whole server, which
    restarts.
    """
    run(spark, server, seed)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(DRIVERS))
def test_a_driver_killed_at_some_moment_changes_no_row(
    spark: Any, server: EmbeddedPostgres, seed: int
) -> None:
    """P-T4, P-T5: another driver repeats the write or continues from the checkpoint."""
    run(spark, server, seed, by_driver=True)
