"""The three ways to write, on Spark Connect. In a separate process, because a process has sessions
of one kind only.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark.sql.connect")

from tests.spark.sql import query

NO_REPORT = "Spark Connect returns no reports from a data source; write_dataframe returns one"


def written(dsn: str, folder: Path, *more: str) -> tuple[dict[str, Any], dict[str, int]]:
    """The program's output, and the number of rows that each way has written."""
    query(dsn, "DROP TABLE IF EXISTS by_connect")
    query(dsn, "CREATE TABLE by_connect (id bigint PRIMARY KEY, way text)")
    program = Path(__file__).with_name("connect_program.py")
    command = [sys.executable, str(program), dsn, str(folder), *more]
    done = subprocess.run(command, capture_output=True, text=True, timeout=380, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    counts = dict(query(dsn, "SELECT way, count(*) FROM by_connect GROUP BY way"))
    return json.loads(done.stdout.splitlines()[-1]), counts


@pytest.mark.long
@pytest.mark.timeout(400)  # a new session starts slowly beside others
def test_the_three_ways_work_on_connect(embedded_postgres: Any, tmp_path: Path) -> None:
    """P-T17: write_dataframe with its report, register, and foreach_batch with its own name."""
    found, counts = written(embedded_postgres.dsn, tmp_path)
    assert found == {"dataframe": 100, "name": NO_REPORT, "error": "None", "read": 20}
    assert counts == {"batch": 20, "dataframe": 100, "name": 50}


@pytest.mark.long
@pytest.mark.timeout(400)
def test_all_ways_work_on_connect(embedded_postgres: Any, tmp_path: Path) -> None:
    """P-T17: also options alone, and a stream by a registered name."""
    found, counts = written(embedded_postgres.dsn, tmp_path, "more")
    assert found == {
        "dataframe": 100,
        "name": NO_REPORT,
        "error": "None",
        "read": 20,
        "second error": "None",
    }
    assert counts == {"batch": 20, "dataframe": 100, "name": 50, "options": 20, "stream": 20}
