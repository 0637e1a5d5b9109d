"""The servers of these tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.clickhouse.clickhouse_help import Words
from tests.clickhouse.servers import EngineServer, OldServer, running

from sluicegate.testing.servers.require import there_or_skip

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="session")
def old_server() -> Iterator[OldServer]:
    """Skip unless Debian's packages are available, or `SLUICEGATE_REQUIRE` names `clickhouse`."""
    with there_or_skip("clickhouse", running(OldServer)) as server:
        yield server


@pytest.fixture(scope="session")
def engine() -> Iterator[EngineServer]:
    """Skip unless the engine is installed, or `SLUICEGATE_REQUIRE` names `clickhouse`."""
    with there_or_skip("clickhouse", running(EngineServer)) as server:
        yield server


@pytest.fixture
def old(old_server: OldServer) -> Words:
    """The table `words` of the old server."""
    return Words(old_server, format="json", deduplicate=False)


@pytest.fixture(params=["arrow", pytest.param("json", marks=pytest.mark.long)])
def words(request: pytest.FixtureRequest, engine: EngineServer) -> Words:
    """The table `words` of the engine, in both formats; the old server reads JSON as well."""
    return Words(engine, format=request.param)
