"""A pipeline whose destination refuses everything ends at once with the required repair; values of
the environment stay hidden.
"""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark")
pytestmark = pytest.mark.long  # `tests/spark/test_refused_chunk.py` tests the same without Spark

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PIPELINE = """
name = "numbers"
[spark]
master = "local[1]"
[spark.conf]
"spark.ui.enabled" = false
"spark.driver.host" = "127.0.0.1"
"spark.driver.bindAddress" = "127.0.0.1"
"spark.driver.extraJavaOptions" = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
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


TWICE = """
import os, sys
from sluicegate.cli import main
for target in sys.argv[2:]:
    os.environ["TARGET"] = target
    ended = main(["pipeline", "run", sys.argv[1]])
    print(f"\\nended with {ended}", file=sys.stderr)
"""
"""One process for all targets, so that Spark is started once."""


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path | None]:
    """A file system with space for a part of the rows; `None` where mounting is impossible."""
    folder = tmp_path_factory.mktemp("full")
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)]
    try:
        subprocess.run(mount, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        yield None
    else:
        yield folder
        subprocess.run(["umount", str(folder)], check=True)


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory, full: Path | None) -> list[str]:
    """The errors of a pipeline into a missing folder, then into one that fills up."""
    folder = tmp_path_factory.mktemp("pipeline")
    (folder / "numbers.csv").write_text(
        "".join(f"{number},{'x' * 1000}\n" for number in range(200))
    )
    (folder / "pipeline.toml").write_text(PIPELINE)
    targets = [folder / "missing", *([full] if full else [])]
    done = subprocess.run(
        [sys.executable, "-c", TWICE, str(folder / "pipeline.toml"), *map(str, targets)],
        env={**os.environ, "HERE": str(folder)},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert done.stderr.count("\nended with 1\n") == len(targets), done.stderr[-2000:]
    return done.stderr.split("\nended with 1\n")


def test_a_sink_that_cannot_be_opened_ends_a_pipeline_at_once(said: list[str]) -> None:
    assert "to repair: create the folder ${TARGET}" in said[0]


def test_a_disk_that_is_full_in_the_middle_ends_a_pipeline(
    said: list[str], full: Path | None
) -> None:
    """Its retry does not wait for an operator, because Spark would hold the executors meanwhile."""
    if full is None:
        pytest.skip("no file system can be mounted here")
    assert "to repair: free space on the file system of ${TARGET}" in said[1]
