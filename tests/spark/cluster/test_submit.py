"""The example programs on a standalone cluster, by the files of `sluicegate pipeline package`."""

from __future__ import annotations

import shutil
import tarfile
import zipfile
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark")

from tests.examples.example import EXAMPLES, printed_on
from tests.spark.sql import query

from .conftest import bare_python

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from sluicegate.testing import EmbeddedPostgres

    from .conftest import Cluster, Submitted


pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

FILE = EXAMPLES / "pipelines" / "flights.toml"


def submit(cluster: Cluster, folder: Path, dsn: str, *arguments: str, **pythons: str) -> Submitted:
    """Run `spark-submit` with the data of the example."""
    shutil.copy(EXAMPLES / "pipelines" / "flights.csv", folder)
    variables = {
        "FLIGHTS": str(folder / "flights.csv"),
        "PG_DSN": dsn,
        "REFUSED": str(folder / "refused.jsonl"),
    }
    return cluster.submit(*arguments, folder=folder, **pythons, **variables)


@pytest.fixture
def dsn(embedded_postgres: EmbeddedPostgres) -> Iterator[str]:
    query(embedded_postgres.dsn, "DROP TABLE IF EXISTS aircraft")
    query(embedded_postgres.dsn, (EXAMPLES / "pipelines" / "aircraft.sql").read_text())
    yield embedded_postgres.dsn
    query(embedded_postgres.dsn, "DROP TABLE aircraft")


def check(ended: Submitted, dsn: str) -> None:
    """The rows are in the table, and were written by executors."""
    assert ended.code == 0, ended.log[-5000:]
    assert "write 1: 5 rows: 5 delivered" in ended.out
    assert "Registered executor " in ended.log
    found = query(dsn, "SELECT tailnum, dest, flights FROM aircraft ORDER BY tailnum")
    assert found == [("N14228", "MIA", 2), ("N24211", "LAS", 3)]


def test_the_example_runs_where_sluicegate_is_not_installed(
    cluster: Cluster, shipped: Path, bare: str, tmp_path: Path, dsn: str
) -> None:
    """Neither on the driver nor on the executors. The master is the one of `spark-submit`, not the
    file's.
    """
    code, program = str(shipped / "sluicegate.zip"), str(shipped / "run_pipeline.py")
    arguments = "--py-files", code, program, str(FILE)
    ended = submit(cluster, tmp_path, dsn, *arguments, driver=bare, executors=bare)
    check(ended, dsn)
    assert "flights: spark-submit's own options apply instead of master in [spark]" in ended.out


def test_the_executors_get_their_whole_python_as_an_archive(
    cluster: Cluster, shipped: Path, bare: str, tmp_path: Path, dsn: str
) -> None:
    """The archive has links to the packages here, which would be the packages themselves."""
    home = tmp_path / "environment"
    bare_python(home)
    with zipfile.ZipFile(shipped / "sluicegate.zip") as code:
        code.extractall(next(home.glob("lib/*/site-packages")))
    archive = tmp_path / "environment.tar.gz"
    with tarfile.open(archive, "w:gz") as file:
        file.add(home, ".")
    shutil.rmtree(home)
    arguments = "--archives", f"{archive}#environment", str(shipped / "run_pipeline.py"), str(FILE)
    python = "./environment/bin/python"
    check(submit(cluster, tmp_path, dsn, *arguments, executors=python), dsn)


def test_the_program_of_the_page_stores_its_rows_once(
    cluster: Cluster, shipped: Path, bare: str, tmp_path: Path, dsn: str
) -> None:
    """It prints what the page shows, and the second time that nothing was to be done."""
    query(dsn, "DROP TABLE IF EXISTS payments, sluicegate_ledger CASCADE")
    query(dsn, "CREATE TABLE payments (account text, seq int, amount int)")
    program = str(EXAMPLES / "payments_on_a_cluster.py")
    arguments = "--py-files", str(shipped / "sluicegate.zip"), program, "20260704"
    (shown,) = printed_on("how-to/run-on-a-spark-cluster.md")
    for told in (shown, shown.replace("0 of 2", "2 of 2")):
        ended = submit(cluster, tmp_path, dsn, *arguments, executors=bare)
        assert ended.code == 0, ended.log[-5000:]
        assert ended.out == told
    found = query(dsn, "SELECT account, seq, amount FROM payments ORDER BY amount")
    assert found == [(f"a{each % 4}", each // 4, 10 * each) for each in range(20)]
    query(dsn, "DROP TABLE payments")


def test_the_exit_code_is_that_of_the_pipeline(
    cluster: Cluster, shipped: Path, tmp_path: Path, dsn: str
) -> None:
    """Mistakes: 2, before an executor is started."""
    file = tmp_path / "flights.toml"
    file.write_text(FILE.read_text().replace('"timeout"', '"tineout"'))
    ended = submit(cluster, tmp_path, dsn, str(shipped / "run_pipeline.py"), str(file))
    assert ended.code == 2, ended.log[-5000:]
    assert "did you mean 'timeout'?" in ended.out
    assert "Registered executor " not in ended.log
