"""Clusters of embedded servers: their nodes by number, and arguments that are refused."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from sluicegate import ConfigError
from sluicegate.testing import embedded_kafka, embedded_nats, embedded_postgres
from sluicegate.testing.servers.require import there_or_skip

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.mark.parametrize(
    ("start", "told"),
    [
        (lambda: embedded_kafka(brokers=0), "brokers=0"),
        (lambda: embedded_nats(servers=0), "servers=0"),
        (lambda: embedded_postgres(standbys=["late"]), "standbys='late'"),  # type: ignore[list-item]
    ],
)
def test_a_bad_argument_is_named(start: Callable[[], object], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        start().__enter__()  # type: ignore[attr-defined]


def test_nodes_have_numbers() -> None:
    with there_or_skip("nats", embedded_nats(servers=3)) as nats:
        assert nats.running == [1, 2, 3]
        nats.pause(1)
        nats.kill(3)
        assert nats.running == [2]
        assert nats.pid is not None
        nats.resume(1)
        nats.start(3)
        assert nats.running == [1, 2, 3]
        with pytest.raises(ConfigError, match="node=4: must be a number from 1 to 3"):
            nats.kill(4)
        nats.kill()
        assert nats.running == []
