"""The servers of these tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

pytest.importorskip("redis")

from tests.redis.redis_help import Store
from tests.redis_server import RedisServer, redis_server

from sluicegate.testing.servers.require import there_or_skip

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="session")
def redis() -> Iterator[RedisServer]:
    """A Redis for all tests, none of which kills it.

    Skips unless Debian's packages are available, or `SLUICEGATE_REQUIRE` names `redis`.
    """
    with there_or_skip("redis", redis_server()) as server:
        yield server


@pytest.fixture
def own_redis() -> Iterator[RedisServer]:
    """A Redis for one test, which may kill it."""
    with there_or_skip("redis", redis_server()) as server:
        yield server


@pytest.fixture
def store(redis: RedisServer) -> Iterator[Store]:
    """An empty Redis, read by a separate client."""
    with Store(redis) as made:
        yield made


@pytest.fixture
def own_store(own_redis: RedisServer) -> Iterator[Store]:
    """The same, for a test that may kill it."""
    with Store(own_redis) as made:
        yield made
