"""All ways to write, on Spark Connect. In a separate process, because a process has sessions
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


@pytest.mark.long
@pytest.mark.timeout(1000)  # 45 s of processor time, a third of it to start Python processes
def test_all_ways_work_on_connect(embedded_postgres: Any, tmp_path: Path) -> None:
    """P-T17: write_dataframe with its report, register, options alone, foreach_batch with its own
    name, and a stream by a registered name.
    """
    dsn = embedded_postgres.dsn
    query(dsn, "DROP TABLE IF EXISTS by_connect")
    query(dsn, "CREATE TABLE by_connect (id bigint PRIMARY KEY, way text)")
    program = Path(__file__).with_name("connect_program.py")
    command = [sys.executable, str(program), dsn, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=980, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads(done.stdout.splitlines()[-1]) == {
        "dataframe": 100,
        "name": NO_REPORT,
        "error": "None",
        "read": 20,
        "second error": "None",
    }
    counts = dict(query(dsn, "SELECT way, count(*) FROM by_connect GROUP BY way"))
    assert counts == {"batch": 20, "dataframe": 100, "name": 50, "options": 20, "stream": 20}
