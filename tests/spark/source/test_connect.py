"""The three ways to write, on Spark Connect. In a process of its own, since one process has either
kind of session.
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


@pytest.mark.timeout(400)  # a session of its own starts slowly where others run beside it
def test_all_ways_work_on_connect(embedded_postgres: Any, tmp_path: Path) -> None:
    """P-T17: write_dataframe with its report, register, options alone, and foreach_batch with a
    name of its own.
    """
    query(embedded_postgres.dsn, "CREATE TABLE by_connect (id bigint PRIMARY KEY, way text)")
    program = Path(__file__).with_name("connect_program.py")
    command = [sys.executable, str(program), embedded_postgres.dsn, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=380, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found == {
        "dataframe": 100,
        "name": "Spark Connect brings no reports back from a data source; write_dataframe "
        "returns one",
        "error": "None",
        "second error": "None",
    }
    counts = query(
        embedded_postgres.dsn, "SELECT way, count(*) FROM by_connect GROUP BY way ORDER BY way"
    )
    assert counts == [
        ("batch", 20),
        ("dataframe", 100),
        ("name", 50),
        ("options", 20),
        ("stream", 20),
    ]
