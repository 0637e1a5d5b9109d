"""Fixtures for the tests of the source of Redis streams."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.redis_server import RedisServer, redis_server

from sluicegate.testing.servers.require import there_or_skip

if TYPE_CHECKING:
    from collections.abc import Generator

pytest.importorskip("redis")


@pytest.fixture(scope="session")
def server() -> Generator[RedisServer]:
    """A Redis that tests do not kill."""
    with there_or_skip("redis", redis_server()) as running:
        yield running


@pytest.fixture
def own_server() -> Generator[RedisServer]:
    """A Redis for one test, which may kill it."""
    with there_or_skip("redis", redis_server()) as running:
        yield running
