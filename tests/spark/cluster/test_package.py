"""Sluicegate as a zip, in a Python that does not have it: imports, files, missing packages.

White box: the work of an executor, without Spark.
"""

from __future__ import annotations

import os
import subprocess
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

from tests.examples.example import EXAMPLES
from tests.spark.sql import query

from sluicegate.postgres import PostgresSink
from sluicegate.spark.description import description

from .conftest import HOME, PACKAGES, bare_python

if TYPE_CHECKING:
    from sluicegate.testing import EmbeddedPostgres

EVERYTHING = """
import pkgutil, sluicegate, sluicegate.postgres, sluicegate.spark, pyspark_sluicegate
from sluicegate.postgres.schema.opened import newest
assert ".zip" in sluicegate.__file__ and newest() > 1 and pyspark_sluicegate.__all__
for part in (sluicegate.postgres, sluicegate.spark):
    for module in pkgutil.walk_packages(part.__path__, part.__name__ + "."):
        __import__(module.name)
print("imported")
"""
OPENED = """
import sys
from sluicegate.spark.task.worker import worker
with worker().using(bytes.fromhex(sys.argv[1])):
    print("opened")
"""


def run(python: str, program: str, zipped: Path, *arguments: str) -> tuple[int, str]:
    """Run with the code of a zip, and Spark's as an executor has it: the exit code and output."""
    path = [str(zipped / "sluicegate.zip"), *map(str, (HOME / "python" / "lib").glob("*.zip"))]
    done = subprocess.run(
        [python, "-c", program, *arguments],
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path)},
    )
    return done.returncode, done.stdout + done.stderr


def test_the_zip_has_all_files_and_nothing_compiled(shipped: Path) -> None:
    names = zipfile.ZipFile(shipped / "sluicegate.zip").namelist()
    assert "sluicegate/spark/_poms/spark-kafka.xml" in names
    assert not [name for name in names if name.endswith((".so", ".c", ".pyc"))]


def test_every_module_is_imported_from_the_zip(shipped: Path, bare: str) -> None:
    assert run(bare, EVERYTHING, shipped) == (0, "imported\n")


def test_the_program_runs_pipelines_from_the_zip(shipped: Path, bare: str, tmp_path: Path) -> None:
    """Here one with a mistake, which is found before Spark starts."""
    file = tmp_path / "flights.toml"
    flights = (EXAMPLES / "pipelines" / "flights.toml").read_text()
    file.write_text(flights.replace('"timeout"', '"tineout"'))
    code, said = run(bare, (shipped / "run_pipeline.py").read_text(), shipped, str(file))
    assert code == 2
    assert "did you mean 'timeout'?" in said


def test_a_missing_driver_is_told_with_the_python_and_the_remedy(
    shipped: Path, bare: str, tmp_path: Path, embedded_postgres: EmbeddedPostgres
) -> None:
    """The same program opens its sink in the complete environment."""
    query(embedded_postgres.dsn, "CREATE TABLE IF NOT EXISTS opened (id bigint)")
    sink = PostgresSink(embedded_postgres.dsn, table="opened", columns=("id",))
    sent = description(sink).hex()
    assert run(bare, OPENED, shipped, sent) == (0, "opened\n")
    python = bare_python(tmp_path / "less", tuple(name for name in PACKAGES if name != "asyncpg"))
    code, said = run(python, OPENED, shipped, sent)
    assert code == 1
    assert "No module named 'asyncpg'\n" in said
    assert f"missing on an executor, whose Python is {python}. If the driver has" in said
