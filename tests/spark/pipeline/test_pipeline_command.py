"""`sluicegate pipeline` as a user runs it: in its own process, with its exit codes.

White box: some commands run in this process.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.examples.example import printed_on

from sluicegate.cli import main

if TYPE_CHECKING:
    from collections.abc import Mapping

ROOT = Path(__file__).parents[3]
EXAMPLE = ROOT / "examples" / "pipelines" / "flights.toml"
SET = {
    "FLIGHTS": "flights.csv",
    "PG_DSN": "postgresql://me:much-too-secret@host/db",
    "REFUSED": "refused.jsonl",
}

STREAM = """
name = "numbers"
[spark]
master = "local[1]"
[spark.conf]
"spark.ui.enabled" = false
"spark.driver.host" = "127.0.0.1"
"spark.driver.bindAddress" = "127.0.0.1"
"spark.driver.extraJavaOptions" = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
[sources.rate]
format = "rate"
options = { rowsPerSecond = 10 }
[steps.numbers]
sql = "SELECT value FROM rate"
[stream]
checkpoint = "${HERE}/checkpoint"
[write]
view = "numbers"
sink = "file"
[sinks.file]
kind = "file"
path = "${HERE}/numbers.jsonl"
"""

BATCH = """
name = "numbers"
[spark]
master = "local[1]"
conf = {{ "spark.ui.enabled" = false, "spark.driver.host" = "127.0.0.1", "spark.driver.bindAddress" = "127.0.0.1" }}
[sources.numbers]
format = "csv"
path = "{folder}/numbers.csv"
schema = "id INT"
options = {{ header = true }}
[write]
view = "numbers"
sink = "pg"
check = {check}
[sinks.pg]
kind = "postgres"
dsn = "postgresql://me@127.0.0.1:{port}/db"
table = "numbers"
columns = ["id"]
"""


@pytest.fixture
def is_set(monkeypatch: pytest.MonkeyPatch) -> Mapping[str, str]:
    for name, value in SET.items():
        monkeypatch.setenv(name, value)
    return SET


def test_a_file_that_is_right(
    is_set: Mapping[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["pipeline", "validate", str(EXAMPLE)]) == 0
    assert capsys.readouterr().out == f"{EXAMPLE}: valid\n"
    assert main(["pipeline", "explain", str(EXAMPLE)]) == 0
    said = capsys.readouterr()
    assert said.out in (ROOT / "docs" / "how-to" / "run-a-pipeline.md").read_text()
    assert "much-too-secret" not in said.out + said.err


def test_mistakes_are_bad_use(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in SET:
        monkeypatch.delenv(name, raising=False)
    for action in ("validate", "run", "explain"):
        assert main(["pipeline", action, str(EXAMPLE)]) == 2
        said = capsys.readouterr()
        assert (
            said.err.splitlines()[1]
            == f"{EXAMPLE}: sinks.aircraft.dsn: the environment variable PG_DSN is not set"
        )
        assert bool(said.out) is (action == "explain")
    assert main(["pipeline", "validate", str(tmp_path / "nowhere.toml")]) == 2
    assert "No such file" in capsys.readouterr().err


def test_the_mistakes_on_the_page(
    is_set: Mapping[str, str],
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The guide's file with its documented mistakes."""
    pytest.importorskip("sqlglot")
    text = EXAMPLE.read_text()
    for right, wrong in (
        ('\npath = "${FLIGHTS}"', '\npaht = "${FLIGHTS}"'),
        ("  FROM flights\n", "  FROM flihgts\n"),
        ('table = "aircraft"\n', 'table = "aircraft"\npool_size = 0\n'),
    ):
        assert text.count(right) == 1
        text = text.replace(right, wrong)
    (tmp_path / "flights.toml").write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PG_DSN")
    assert main(["pipeline", "validate", "flights.toml"]) == 2
    assert capsys.readouterr().err in printed_on("how-to/run-a-pipeline.md")


def test_without_java_a_run_says_so(
    is_set: Mapping[str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    assert main(["pipeline", "run", str(EXAMPLE)]) == 2
    assert "Spark needs Java, and none was found" in capsys.readouterr().err


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_signal_ends_a_stream_in_order(tmp_path: Path) -> None:
    pytest.importorskip("pyspark")
    file = tmp_path / "numbers.toml"
    file.write_text(STREAM)
    command = [sys.executable, "-m", "sluicegate.cli", "pipeline", "run", str(file)]
    with subprocess.Popen(
        command,
        env={**os.environ, "HERE": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        assert process.stdout is not None
        try:
            lines = iter(process.stdout.readline, "")
            assert next(line for line in lines if line.startswith("write "))
            process.send_signal(signal.SIGINT)
            rest = [line.strip() for line in lines]
            assert process.wait(300) == 130
        finally:
            process.kill()
    *_, total, end = rest
    assert end == "interrupted"
    assert "interrupted: ending after this micro-batch; interrupt again to end it now" in rest
    counted = re.fullmatch(r"numbers: (\d+) rows: (\d+) delivered, .*", total)
    assert counted is not None, rest
    written = [
        line
        for found in tmp_path.glob("numbers-*.jsonl")
        for line in found.read_text().splitlines()
    ]
    assert int(counted[1]) == int(counted[2]) == len(written) == len(set(written)) > 0


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("check", ["true", "false"], ids=["on the driver", "in a worker"])
def test_a_signal_while_the_sink_opens_ends_a_batch_and_nothing_is_written(
    tmp_path: Path, check: str
) -> None:
    """The sink's server accepts connections but never answers."""
    pytest.importorskip("pyspark")
    (tmp_path / "numbers.csv").write_text("id\n1\n2\n")
    file = tmp_path / "numbers.toml"
    command = [sys.executable, "-m", "sluicegate.cli", "pipeline", "run", str(file)]
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(300.0)
        port = server.getsockname()[1]
        file.write_text(BATCH.format(folder=tmp_path, port=port, check=check))
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        ) as process:
            assert process.stdout is not None
            try:
                connection, _ = server.accept()
                with connection:
                    process.send_signal(signal.SIGTERM)
                    assert process.wait(300) == 130
                    connection.settimeout(30.0)
                    asked = connection.makefile("rb").read()
            finally:
                process.kill()
            lines = process.stdout.read().splitlines()
    assert len(asked) < 200, "more than the greeting"
    assert lines[-1] == "interrupted"
