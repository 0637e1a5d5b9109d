"""The pytest plugin: fixtures `fake_clock`, `real_clock`, `embedded_postgres`,
`embedded_opensearch` and `embedded_kafka`.

An `async def` test that uses `fake_clock`, itself or through a fixture, runs on that clock's
virtual loop; one that uses `real_clock` runs on a loop of its own. The plugin ignores other async
tests. It loads only the standard library until a fixture needs more.
"""

from __future__ import annotations

import asyncio
import inspect
from typing import TYPE_CHECKING, Any

import pytest

from .._core.clock import LoopClock
from .clock.clock import FakeClock
from .servers.require import there_or_skip

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .servers.kafka import EmbeddedKafka
    from .servers.opensearch import EmbeddedOpenSearch
    from .servers.postgres import EmbeddedPostgres

_failed = pytest.StashKey[bool]()


@pytest.fixture
def fake_clock(request: pytest.FixtureRequest) -> Iterator[FakeClock]:
    """A new clock on a virtual loop; the test fails if it leaves a task or a timer."""
    with FakeClock() as clock:
        yield clock
        leftovers = [] if _failed in request.node.stash else clock.leftovers()
        if leftovers:
            pytest.fail("left behind:\n  " + "\n  ".join(leftovers), pytrace=False)


@pytest.fixture
def real_clock() -> LoopClock:
    """The real clock."""
    return LoopClock()


@pytest.fixture(scope="session")
def embedded_postgres() -> Iterator[EmbeddedPostgres]:
    """A PostgreSQL server for the whole test run, without durability.

    Skips if it is not available, unless `PENSTOCK_REQUIRE` names it (`postgres`).
    """
    from .servers.postgres import embedded_postgres as start

    with there_or_skip("postgres", start({"fsync": "off"})) as server:
        yield server


@pytest.fixture(scope="session")
def embedded_opensearch() -> Iterator[EmbeddedOpenSearch]:
    """An OpenSearch server for the whole test run.

    Skips if it is not available, unless `PENSTOCK_REQUIRE` names it (`opensearch`).
    """
    from .servers.opensearch import embedded_opensearch as start

    with there_or_skip("opensearch", start()) as server:
        yield server


@pytest.fixture(scope="session")
def embedded_kafka() -> Iterator[EmbeddedKafka]:
    """A Kafka broker for the whole test run.

    Skips if it is not available, unless `PENSTOCK_REQUIRE` names it (`kafka`).
    """
    from .servers.kafka import embedded_kafka as start

    with there_or_skip("kafka", start()) as server:
        yield server


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run async tests that use one of these clocks."""
    fixtures: dict[str, Any] = pyfuncitem.funcargs
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    arguments = {
        name: fixtures[name]
        for name in inspect.signature(pyfuncitem.obj).parameters
        if name in fixtures
    }
    clock = fixtures.get("fake_clock")
    if not isinstance(clock, FakeClock) and "real_clock" not in fixtures:
        return None
    try:
        if isinstance(clock, FakeClock):
            clock.run(pyfuncitem.obj(**arguments))
        else:
            asyncio.run(pyfuncitem.obj(**arguments))
    except BaseException:
        pyfuncitem.stash[_failed] = True
        raise
    return True
