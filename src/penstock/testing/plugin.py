"""The pytest plugin: fixtures `fake_clock`, `real_clock` and `embedded_postgres`.

An `async def` test that asks for `fake_clock` runs on that clock's virtual loop; one that asks for `real_clock` runs on a loop of its
own. Other async tests are left to other plugins.
"""

from __future__ import annotations

import asyncio
import inspect
from typing import TYPE_CHECKING, Any

import pytest

from penstock._core.clock import LoopClock
from penstock.testing._clock import FakeClock
from penstock.testing._require import EmbeddedUnavailable, skip_or_fail

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.testing._postgres import EmbeddedPostgres


@pytest.fixture
def fake_clock() -> Iterator[FakeClock]:
    """A fresh clock on a virtual loop; the test fails if it leaves a task or a timer behind."""
    with FakeClock() as clock:
        yield clock
        leftovers = clock.leftovers()
        assert not leftovers, "left behind: " + ", ".join(leftovers)


@pytest.fixture
def real_clock() -> LoopClock:
    """The real time."""
    return LoopClock()


@pytest.fixture(scope="session")
def embedded_postgres() -> Iterator[EmbeddedPostgres]:
    """A PostgreSQL server for the whole test run, without durability."""
    from penstock.testing._postgres import embedded_postgres as start

    try:
        context = start({"fsync": "off"})
        server = context.__enter__()
    except EmbeddedUnavailable as error:
        skip_or_fail("postgres", str(error))
    try:
        yield server
    finally:
        context.__exit__(None, None, None)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run async tests that ask for one of our clocks."""
    arguments: dict[str, Any] = pyfuncitem.funcargs
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    wanted = {name: arguments[name] for name in inspect.signature(pyfuncitem.obj).parameters if name in arguments}
    clock = arguments.get("fake_clock")
    if isinstance(clock, FakeClock):
        clock.run(pyfuncitem.obj(**wanted))
        return True
    if "real_clock" in arguments:
        asyncio.run(pyfuncitem.obj(**wanted))
        return True
    return None
