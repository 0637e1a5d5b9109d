"""The tutorial and the guides' tests as run by a reader without a checkout: with the commands of the
pages, from an index with the wheel, in a separate environment and folder.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.examples.example import DOCS, printed_on
from tests.examples.reader import Reader, reader_in

pytestmark = pytest.mark.long

CONSOLE = re.compile(r"```console\n\$ \.venv/bin/python examples/(\S+\.py).*\n((?:.*\n)*?)```")


@pytest.fixture
def bare(index: str, tmp_path: Path) -> Reader:
    """The wheel without extras."""
    made = reader_in(tmp_path, index)
    made.install("sluicegate")
    return made


@pytest.fixture(scope="module")
def environment(index: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel with the extras that first-steps.md names."""
    page = (DOCS / "tutorial/first-steps.md").read_text()
    (requirement,) = re.findall(r'^\$ \.venv/bin/pip install "(sluicegate\[.*?\])"', page, re.M)
    made = reader_in(tmp_path_factory.mktemp("reader"), index)
    made.install(requirement)
    return made.environment


@pytest.fixture
def reader(index: str, environment: Path, tmp_path: Path) -> Reader:
    """That environment, and an empty folder."""
    return Reader(environment, tmp_path, {"PIP_INDEX_URL": index})


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
    ((requirement, others),) = re.findall(r'pip install "(sluicegate\[.*?\])" (.*)', page)
    reader.install(requirement, *others.split())
    reader.copy("a_postgres.py", "ingest_service.py", "ingest_load.py")
    with reader.started("a_postgres.py") as first:
        dsn = first.removeprefix("export DSN=")
        with reader.started("ingest_service.py", dsn, "--port", "0") as listening:
            url = listening.rpartition(" ")[2]
            assert reader.run("ingest_load.py", url, "100", "1") == "202: 100 (100.0%)\n"
