"""Kills from seeds in separate processes: one repeated seed, or a driver that is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.seeds import run_by

from sluicegate.testing import EmbeddedPostgres, embedded_postgres

from .kills import DRIVER_NOTE, Killed


def session(master: str = "local[2,4]") -> Any:
    """A Spark session like that of the tests."""
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    builder = (
        SparkSession.builder.master(master)
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
    )
    builder = builder.config("spark.driver.bindAddress", "127.0.0.1").config(
        "spark.sql.shuffle.partitions", "4"
    )
    for process in ("driver", "executor"):
        options = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
        builder = builder.config(f"spark.{process}.extraJavaOptions", options)
    return builder.getOrCreate()


def again(seed: int, *, by_driver: bool = False) -> None:
    """Run once with a separate server and Spark."""
    with embedded_postgres() as server:
        run(session(), server, seed, by_driver=by_driver)


def run(spark: Any, server: EmbeddedPostgres, seed: int, *, by_driver: bool = False) -> Killed:
    """Run once; an error says how to repeat the run."""
    killed = Killed(seed, (server.dsn, server._data), notes(server), by_driver=by_driver)
    with run_by(
        f"from tests.spark.levels.alone import again; again({seed}, by_driver={by_driver})"
    ):
        killed.prepare()
        if by_driver:
            _begin_elsewhere(killed)
        killed.finish(spark, server)
    return killed


def notes(server: EmbeddedPostgres) -> Path:
    """A new folder that the server's user can also modify."""
    folder = Path(tempfile.mkdtemp(prefix="notes-", dir=server._folder.path))
    folder.chmod(0o777)
    return folder


def _begin_elsewhere(killed: Killed) -> None:
    """Run the write in a separate driver until that is killed; its JVM is gone afterwards, too."""
    program = "from tests.spark.levels.alone import drive; drive()"
    arguments = [str(killed.seed), killed.dsn, killed.kill.data, str(killed.folder)]
    said = killed.folder / "said"
    with said.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-c", program, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            start_new_session=True,
        )
        try:
            code = process.wait(300)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    assert code == -signal.SIGKILL, (
        f"{killed}: the driver ended with {code}: {said.read_text()[-3000:]}"
    )


def drive() -> None:
    """The work of that driver."""
    seed, dsn, data, folder = sys.argv[1:]
    (Path(folder) / DRIVER_NOTE).write_text(str(os.getpgrp()))
    Killed(int(seed), (dsn, Path(data)), Path(folder), by_driver=True).write(session())
