"""A server for each module, which tests kill, freeze and configure."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from sluicegate.testing import EmbeddedNats
from sluicegate.testing import embedded_nats as start_nats
from sluicegate.testing.servers.require import there_or_skip

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="module")
def own_server() -> Iterator[EmbeddedNats]:
    with there_or_skip("nats", start_nats()) as server:
        yield server


@pytest.fixture
def own(own_server: EmbeddedNats) -> EmbeddedNats:
    """The server, running whatever the previous test has done to it."""
    own_server.resume()
    own_server.start()
    return own_server
