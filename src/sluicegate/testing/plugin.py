"""The pytest plugin: fixtures `fake_clock`, `real_clock`, `embedded_postgres`,
`embedded_opensearch`, `embedded_kafka`, `embedded_nats` and `embedded_registry`.

An `async def` test that uses `fake_clock`, directly or through a fixture, runs on that clock's
virtual loop, also under pytest-asyncio and anyio (the rules are in `on_clock`). A test that uses
`real_clock` runs on its own loop, unless another plugin runs it. The plugin ignores other async
tests. It loads only the standard library until a fixture needs more.
"""

from __future__ import annotations

import asyncio
import inspect
from typing import TYPE_CHECKING, Any

import pytest

from .._core.clock import LoopClock
from . import on_clock
from .clock import FakeClock
from .servers.require import there_or_skip

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from . import (
        EmbeddedKafka,
        EmbeddedNats,
        EmbeddedOpenSearch,
        EmbeddedPostgres,
        EmbeddedRegistry,
    )


@pytest.fixture
def fake_clock(request: pytest.FixtureRequest) -> Iterator[FakeClock]:
    """A new clock on a virtual loop; the test fails if it leaves a task or a timer."""
    _refuse_running_loop()
    with FakeClock() as clock:
        request.node.stash[on_clock.CLOCK] = clock
        yield clock
        del request.node.stash[on_clock.CLOCK]
        leftovers = [] if on_clock.FAILED in request.node.stash else clock.leftovers()
        if leftovers:
            pytest.fail("left behind:\n  " + "\n  ".join(leftovers), pytrace=False)


def _refuse_running_loop() -> None:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    pytest.fail(
        "fake_clock was requested while the test is already running on another loop: make it an "
        "argument of the test, not getfixturevalue() inside it",
        pytrace=False,
    )


@pytest.fixture
def real_clock() -> LoopClock:
    """The real clock."""
    return LoopClock()


@pytest.fixture(scope="session")
def embedded_postgres() -> Iterator[EmbeddedPostgres]:
    """A PostgreSQL server for the whole test run, without durability, and with little WAL on disk.

    Skips if it is not available, unless `SLUICEGATE_REQUIRE` names it (`postgres`).
    """
    from . import embedded_postgres as start

    settings = {"fsync": "off", "max_wal_size": "64MB", "min_wal_size": "32MB"}
    with there_or_skip("postgres", start(settings)) as server:
        yield server


@pytest.fixture(scope="session")
def embedded_opensearch() -> Iterator[EmbeddedOpenSearch]:
    """An OpenSearch server for the whole test run.

    Skips if it is not available, unless `SLUICEGATE_REQUIRE` names it (`opensearch`).
    """
    from . import embedded_opensearch as start

    with there_or_skip("opensearch", start()) as server:
        yield server


@pytest.fixture(scope="session")
def embedded_kafka() -> Iterator[EmbeddedKafka]:
    """A Kafka broker for the whole test run.

    Skips if it is not available, unless `SLUICEGATE_REQUIRE` names it (`kafka`).
    """
    from . import embedded_kafka as start

    with there_or_skip("kafka", start()) as server:
        yield server


@pytest.fixture(scope="session")
def embedded_nats() -> Iterator[EmbeddedNats]:
    """A NATS server with JetStream for the whole test run.

    Skips if it is not available, unless `SLUICEGATE_REQUIRE` names it (`nats`).
    """
    from . import embedded_nats as start

    with there_or_skip("nats", start()) as server:
        yield server


@pytest.fixture(scope="session")
def embedded_registry() -> Iterator[EmbeddedRegistry]:
    """A schema registry for the whole test run.

    Skips if it is not available, unless `SLUICEGATE_REQUIRE` names it (`registry`).
    """
    from . import embedded_registry as start

    with there_or_skip("registry", start()) as server:
        yield server


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_fixture_setup(
    fixturedef: pytest.FixtureDef[Any], request: pytest.FixtureRequest
) -> Generator[None, object, object]:
    """Run the async fixtures of a test with a fake clock on that clock."""
    if not on_clock.belongs_on_clock(fixturedef, request):
        return (yield)
    clock = request.getfixturevalue("fake_clock")
    if not isinstance(clock, FakeClock):
        return (yield)
    with pytest.MonkeyPatch.context() as patch:
        plain = on_clock.as_plain_function(fixturedef.func, clock, request)
        patch.setattr(fixturedef, "func", plain)
        return (yield)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, None, None]:
    """Fail a test with a fake clock that does not run on it."""
    on_clock.remember_function(item)
    yield
    on_clock.check_that_it_ran(item)


@pytest.hookimpl(specname="pytest_pyfunc_call", wrapper=True, tryfirst=True)
def pytest_pyfunc_call_on_clock(pyfuncitem: pytest.Function) -> Generator[None, object, object]:
    """Run an async test that uses a fake clock on that clock."""
    clock = on_clock.clock_of(pyfuncitem)
    if clock is None:
        return (yield)
    try:
        with on_clock.put_on_clock(pyfuncitem, clock):
            return (yield)
    except BaseException:
        pyfuncitem.stash[on_clock.FAILED] = True
        raise


@pytest.hookimpl(specname="pytest_pyfunc_call")
def pytest_pyfunc_call_in_real_time(pyfuncitem: pytest.Function) -> bool | None:
    """Run an async test that uses the real clock, unless another plugin runs it."""
    if "real_clock" not in pyfuncitem.funcargs or not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = inspect.signature(pyfuncitem.obj).parameters
    arguments = {name: pyfuncitem.funcargs[name] for name in names if name in pyfuncitem.funcargs}
    asyncio.run(pyfuncitem.obj(**arguments))
    return True
