"""A standalone cluster, and Pythons of executors that have no Sluicegate."""

from __future__ import annotations

import importlib.metadata
import os
import signal
import subprocess
import sys
import threading
import venv
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from sluicegate.cli import main
from sluicegate.testing.servers.java import find_java
from sluicegate.testing.servers.program import ServerProgram, free_port
from sluicegate.testing.servers.require import EmbeddedUnavailable, skip_or_fail

if TYPE_CHECKING:
    from collections.abc import Iterator

pyspark = pytest.importorskip("pyspark")

HOME = Path(pyspark.__file__).parent
PACKAGES = (
    *("numpy", "pandas", "python-dateutil", "six", "pytz", "tzdata", "pyarrow"),
    *("asyncpg", "cronsim", "tenacity", "msgspec", "sqlglot"),
)
"""What the executors need for a write to PostgreSQL, and the driver for a pipeline's file."""
FLAGS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
LOG = """
rootLogger.level = info
rootLogger.appenderRef.out.ref = out
appender.out.type = Console
appender.out.name = out
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = %m%n
"""
SUBMIT_SECONDS = 900


class Daemon(ServerProgram):
    """A master or a worker."""

    def __init__(self, name: str, program: str, *arguments: str) -> None:
        super().__init__(name, _has_begun)
        (self.folder.path / "log.properties").write_text(LOG)
        variables = {
            "SPARK_HOME": str(HOME),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_DAEMON_MEMORY": "192m",
            "SPARK_DAEMON_JAVA_OPTS": f"{FLAGS} "
            f"-Dlog4j2.configurationFile={self.folder.path}/log.properties",
        }
        self.configure(
            [
                "env",
                *("-u", "PYTHONPATH"),  # which executors would inherit
                *(f"{key}={value}" for key, value in variables.items()),
                *(str(HOME / "bin" / "spark-class"), f"org.apache.spark.deploy.{program}"),
                *("--host", "127.0.0.1", "--webui-port", "0", *arguments),
            ]
        )


def _has_begun(process: subprocess.Popen[bytes]) -> bool:
    """Whether it has a leader, or a master; its further output is read and dropped."""
    output: Any = process.stdout
    has_begun = any(
        b"elected leader" in line or b"Successfully registered" in line for line in output
    )
    threading.Thread(target=deque, args=(output, 0), daemon=True).start()
    return has_begun


@dataclass(frozen=True)
class Submitted:
    """A program that `spark-submit` has run."""

    code: int
    out: str
    log: str


@dataclass(frozen=True)
class Cluster:
    """The cluster's address, and the programs that run on it."""

    master: str

    def submit(
        self,
        *arguments: str,
        folder: Path,
        driver: str = sys.executable,
        executors: str = sys.executable,
        **variables: str,
    ) -> Submitted:
        """Run `spark-submit` in the folder; its processes are gone afterwards.

        Args:
            arguments: options, the program and its arguments.
            folder: the working folder.
            driver: the Python of the driver.
            executors: the Python of the executors.
            variables: further environment variables.
        """
        settings = {
            "spark.ui.enabled": "false",
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.executor.memory": "512m",
            "spark.executor.cores": "1",
            "spark.cores.max": "2",
            "spark.shuffle.io.maxRetries": "0",
            "spark.executor.extraJavaOptions": FLAGS,
        }
        command = [
            *(str(HOME / "bin" / "spark-submit"), "--master", self.master),
            *("--driver-memory", "512m", "--driver-java-options", FLAGS),
            *(part for each in settings.items() for part in ("--conf", "=".join(each))),
            *arguments,
        ]
        environment = {
            **os.environ,
            "PYSPARK_DRIVER_PYTHON": driver,
            "PYSPARK_PYTHON": executors,
            "SPARK_LOCAL_IP": "127.0.0.1",
            **variables,
        }
        environment.pop("PYTHONPATH", None)
        if driver == sys.executable:
            environment["PYTHONPATH"] = os.pathsep.join(sys.path)
        out, log = folder / "out", folder / "log"
        with out.open("w") as said, log.open("w") as logged:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=logged,
                env=environment,
                cwd=folder,
                start_new_session=True,
            )
            try:
                process.wait(SUBMIT_SECONDS)
            finally:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
        return Submitted(process.returncode, out.read_text(), log.read_text())


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """A standalone master with two workers of one core."""
    port = str(free_port())
    address = f"spark://127.0.0.1:{port}"
    daemons: list[Daemon] = []
    try:
        find_java()
        daemons = [
            Daemon("Spark-Master", "master.Master", "--port", port),
            *(
                Daemon(
                    f"Spark-Worker-{number}",
                    "worker.Worker",
                    *("--cores", "1", "--memory", "1g", "--work-dir", "work", address),
                )
                for number in range(2)
            ),
        ]
        daemons[0].start()
        with ThreadPoolExecutor() as side_by_side:
            for started in [side_by_side.submit(each.start) for each in daemons[1:]]:
                started.result()
    except EmbeddedUnavailable as error:
        skip_or_fail("spark", str(error))
    try:
        yield Cluster(address)
    finally:
        for each in daemons:
            each.close()


@pytest.fixture(scope="session")
def shipped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with `sluicegate.zip` and `run_pipeline.py`."""
    folder = tmp_path_factory.mktemp("shipped")
    assert main(["pipeline", "package", str(folder)]) == 0
    return folder


def bare_python(home: Path, packages: tuple[str, ...] = PACKAGES) -> str:
    """The Python of a new environment with these packages of the present one, as links."""
    venv.create(home, with_pip=False)
    (into,) = home.glob("lib/*/site-packages")
    for package in packages:
        found = importlib.metadata.distribution(package)
        for name in {file.parts[0] for file in found.files or ()} - {"..", "__pycache__"}:
            with suppress(FileExistsError):
                (into / name).symlink_to(Path(str(found.locate_file(name))))
    return str(home / "bin" / "python")


@pytest.fixture(scope="session")
def bare(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The Python of an environment with everything but Sluicegate."""
    return bare_python(tmp_path_factory.mktemp("bare") / "environment")
