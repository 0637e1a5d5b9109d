"""The tutorial and the guides' tests as run by a reader without a checkout: from the wheel, in a
separate environment and folder.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.examples.example import DOCS, EXAMPLES, ROOT, printed_on

from sluicegate.testing import EmbeddedUnavailable
from sluicegate.testing.servers.require import there_or_skip

if TYPE_CHECKING:
    from collections.abc import Generator

pytestmark = pytest.mark.long

INSTALL_SECONDS = 120
PROGRAM_SECONDS = 30
CONSOLE = re.compile(r"```console\n\$ \.venv/bin/python examples/(\S+\.py).*\n((?:.*\n)*?)```")


@dataclass
class Reader:
    """An environment with Sluicegate, and an empty folder for programs."""

    environment: Path
    folder: Path

    def command(self, *args: str) -> list[str]:
        return [str(self.environment / "bin" / "python"), *args]

    def copy(self, *names: str) -> None:
        for name in names:
            shutil.copy(EXAMPLES / name, self.folder)

    def ended(self, *args: str, seconds: float) -> subprocess.CompletedProcess[str]:
        """Run Python with these arguments until it ends; stderr is included in stdout."""
        return subprocess.run(
            self.command(*args),
            cwd=self.folder,
            env=outside(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=seconds,
        )

    def run(self, *args: str, seconds: float = PROGRAM_SECONDS) -> str:
        """The output of Python with these arguments. Its exit code must be 0."""
        done = self.ended(*args, seconds=seconds)
        assert done.returncode == 0, f"{args}: {done.stdout[-3000:]}"
        return done.stdout

    @contextlib.contextmanager
    def started(self, *args: str) -> Generator[str]:
        """A program that runs until SIGTERM and exits with 0; returns its first line."""
        with subprocess.Popen(
            self.command(*args),
            cwd=self.folder,
            env=outside(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        ) as process:
            try:
                assert process.stdout is not None
                yield process.stdout.readline().rstrip()
            finally:
                process.send_signal(signal.SIGTERM)
                rest, _ = process.communicate(timeout=PROGRAM_SECONDS)
        assert process.returncode == 0, rest

    def install(self, *requirements: str) -> None:
        self.run("-m", "pip", "install", "--quiet", *requirements, seconds=INSTALL_SECONDS)


def outside() -> dict[str, str]:
    """The environment variables of this process, without those that lead Python or pytest to the
    checkout.
    """
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PYTHON", "PYTEST", "VIRTUAL_ENV"))
    }


def reader_in(folder: Path) -> Reader:
    subprocess.run(
        [sys.executable, "-m", "venv", str(folder / "env")], check=True, timeout=INSTALL_SECONDS
    )
    (folder / "programs").mkdir()
    return Reader(folder / "env", folder / "programs")


@contextlib.contextmanager
def builder(folder: Path) -> Generator[Reader]:
    """An environment that can build a wheel, or `EmbeddedUnavailable` if nothing can be installed.

    Only a failed installation in this step means that there is no package index.
    """
    made = reader_in(folder)
    install = ("-m", "pip", "install", "--quiet", "hatchling>=1.25")
    done = made.ended(*install, seconds=INSTALL_SECONDS)
    if done.returncode:
        reason = done.stdout.strip().splitlines()[-1:]
        raise EmbeddedUnavailable(f"pip cannot install hatchling: {''.join(reason)}")
    yield made


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this checkout."""
    with there_or_skip("index", builder(tmp_path_factory.mktemp("build"))) as made:
        build = ("-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation")
        made.run(*build, str(ROOT), seconds=INSTALL_SECONDS)
        (found,) = made.folder.glob("sluicegate-*.whl")
    return found


@pytest.fixture
def bare(wheel: Path, tmp_path: Path) -> Reader:
    """The wheel without extras."""
    made = reader_in(tmp_path)
    made.install(str(wheel))
    return made


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel with the extras that first-steps.md names."""
    (extras,) = re.findall(
        r'pip install "/path/to/sluicegate(\[.*?\])"',
        (DOCS / "tutorial/first-steps.md").read_text(),
    )
    made = reader_in(tmp_path_factory.mktemp("reader"))
    made.install(f"{wheel}{extras}")
    return made.environment


@pytest.fixture
def reader(environment: Path, tmp_path: Path) -> Reader:
    """That environment, and an empty folder."""
    return Reader(environment, tmp_path)


def console_on(page: str) -> dict[str, str]:
    """The output of each program on the page."""
    return dict(CONSOLE.findall((DOCS / page).read_text()))


def comparable(printed: str) -> list[str]:
    """The lines without times, the named slow phases and batch ids; log and stdout are interleaved
    randomly.
    """
    lines = re.sub(r"\d+\.\d{3} s", "N s", re.sub(r" \(spent on: .*\)", "", printed)).splitlines()
    return sorted(re.sub(r"\(batch \S*-\d+", "(batch B", line) for line in lines)


def test_without_an_extra(bare: Reader) -> None:
    """The programs that need no extra, and the package that they import."""
    bare.copy("first_batcher.py", "first_consumer.py", "charges.py")
    imported = Path(bare.run("-c", "import sluicegate; print(sluicegate.__file__)").strip())
    assert imported.is_relative_to(bare.environment)
    said = console_on("tutorial/first-steps.md")["first_batcher.py"]
    assert comparable(bare.run("first_batcher.py")) == comparable(said)
    orders, charges, *_ = printed_on("tutorial/a-first-consumer.md")
    assert bare.run("first_consumer.py") == orders
    log = "billing: 1 dead letters are written, the first for charges/0@1 (PoisonError)"
    assert comparable(bare.run("charges.py")) == sorted([*charges.splitlines(), log])


def test_with_postgres(reader: Reader) -> None:
    """The server of a second terminal, and the program that writes to it."""
    reader.copy("a_postgres.py", "audit_to_postgres.py")
    with reader.started("a_postgres.py") as first:
        printed = reader.run("audit_to_postgres.py", first.removeprefix("export DSN="))
    said = console_on("tutorial/first-steps.md")["audit_to_postgres.py"]
    assert comparable(printed) == comparable(said)


def test_the_tests_of_the_guides(reader: Reader) -> None:
    """With pytest, in a folder that contains nothing else."""
    names = ("test_my_code.py", "test_my_handler.py", "test_my_events.py")
    reader.copy(*names)
    assert "\n5 passed in " in reader.run("-m", "pytest", "-q", "-W", "error", *names)


def test_the_service(reader: Reader) -> None:
    """The service of the tutorial with the packages and the load on its page."""
    page = (DOCS / "tutorial/a-service.md").read_text()
    ((extras, others),) = re.findall(r'pip install "sluicegate(\[.*?\])" (.*)', page)
    reader.install(f"sluicegate{extras}", *others.split())
    reader.copy("a_postgres.py", "ingest_service.py", "ingest_load.py")
    with reader.started("a_postgres.py") as first:
        dsn = first.removeprefix("export DSN=")
        with reader.started("ingest_service.py", dsn, "--port", "0") as listening:
            url = listening.rpartition(" ")[2]
            assert reader.run("ingest_load.py", url, "100", "1") == "202: 100 (100.0%)\n"
