"""A load is timed, killed, and compared with the files."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING
from urllib.parse import urlsplit, urlunsplit

import pytest

pytest.importorskip("pyarrow")
from benchmarks.cases.spark.movers import Timed
from benchmarks.spark.loads import Difference, Loading, Mover
from benchmarks.spark.psql import Psql
from examples.demo.flights import NoFlights

from sluicegate.testing.servers.require import skip_or_fail

if TYPE_CHECKING:
    from pathlib import Path

    from sluicegate.testing import EmbeddedPostgres

ROWS = 120
"""Ten in each file."""


@pytest.fixture
def loading(embedded_postgres: EmbeddedPostgres, tmp_path: Path) -> Loading:
    Psql(embedded_postgres.dsn).run("DROP DATABASE IF EXISTS loads", "CREATE DATABASE loads")
    dsn = urlunsplit(urlsplit(embedded_postgres.dsn)._replace(path="loads"))
    try:
        return Loading(dsn, tmp_path, ROWS)
    except NoFlights as error:
        skip_or_fail("flights", str(error))


def test_a_load_is_timed_if_all_rows_have_arrived_once(loading: Loading) -> None:
    timed = Timed(loading, Mover("psql", loading.by_psql()))
    assert timed.command() >= timed.work() > 0
    min(loading.csv.iterdir()).unlink()
    with pytest.raises(AssertionError, match="lost=10, repeated=0"):
        Timed(loading, Mover("psql", loading.by_psql())).command()


def test_a_load_that_is_killed_ends_with_its_processes_and_can_be_started_again(
    loading: Loading,
) -> None:
    """The first run commits all rows, and another process of it has deleted them, uncommitted."""
    psql = Psql(loading.dsn)
    copy = shlex.join(loading.by_psql())
    uncommitted = r"echo 'BEGIN; DELETE FROM flights; \echo begin'; sleep 600"
    script = f"""
        [ -e {loading.state} ] && exec {copy}
        touch {loading.state}
        {copy} > {loading.state}
        ({uncommitted}) | {shlex.join(psql.command())}
    """
    mover = Mover("copies", ["bash", "-c", script])
    loading.clear()
    assert loading.load(mover, kill_at=0).was_killed
    assert not loading.load(mover).was_killed
    assert loading.compare(mover) == Difference(lost=0, repeated=ROWS)
