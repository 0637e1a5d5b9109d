"""A pipeline whose destination refuses everything ends at once, and says what to repair; values of
the environment stay hidden.
"""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark")

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PIPELINE = """
name = "numbers"
[spark]
master = "local[1]"
conf = { "spark.ui.enabled" = false, "spark.driver.host" = "127.0.0.1", "spark.driver.bindAddress" = "127.0.0.1" }
[sources.numbers]
format = "csv"
path = "${HERE}/numbers.csv"
schema = "id BIGINT, pad STRING"
[write]
view = "numbers"
sink = "file"
[sinks.file]
kind = "file"
path = "${TARGET}/numbers.jsonl"
per_process = true
[[sinks.file.stack]]
kind = "retry"
"""


@pytest.fixture
def full(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "full"
    folder.mkdir()
    try:
        subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)],
            check=True,
            capture_output=True,
        )
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no file system can be mounted here: {error}")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def run(folder: Path, target: Path) -> subprocess.CompletedProcess[str]:
    (folder / "numbers.csv").write_text(
        "".join(f"{number},{'x' * 1000}\n" for number in range(200))
    )
    (folder / "pipeline.toml").write_text(PIPELINE)
    command = [
        sys.executable,
        "-m",
        "penstock.cli",
        "pipeline",
        "run",
        "--plain",
        str(folder / "pipeline.toml"),
    ]
    environment = {**os.environ, "HERE": str(folder), "TARGET": str(target)}
    return subprocess.run(
        command,
        env=environment,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )


def test_a_sink_that_cannot_be_opened_ends_a_pipeline_at_once(tmp_path: Path) -> None:
    done = run(tmp_path, tmp_path / "missing")
    assert done.returncode == 1, done.stderr[-2000:]
    assert "to repair: create the folder ${TARGET}" in done.stderr


def test_a_disk_that_is_full_in_the_middle_ends_a_pipeline(tmp_path: Path, full: Path) -> None:
    """Its retry does not wait for an operator: Spark would hold the executors meanwhile."""
    done = run(tmp_path, full)
    assert done.returncode == 1, done.stderr[-2000:]
    assert "to repair: free space on the file system of ${TARGET}" in done.stderr
